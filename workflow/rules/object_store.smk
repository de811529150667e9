"""An object store that data and results lie in: `--default-storage-provider s3` (docs/storage.md).

Without that option nothing here has an effect, but for the check that the study's folders hold no copies of a store.
"""

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from snakemake.io import flag, is_callable, is_flagged
from snakemake.jobs import Job
from snakemake.path_modifier import PATH_MODIFIER_FLAG, PathModifier
from snakemake_interface_storage_plugins.io import Mtime
from snakemake_interface_storage_plugins.storage_object import StorageObjectBase

from dpprobe.artifacts import atomic_path
from dpprobe.errors import DpprobeError
from dpprobe.study.object_store import (
    SECRETS,
    SHOWN,
    Folders,
    changed_objects,
    check_marks,
    plain_address,
    prefix_alone,
    store_faults,
    write_marks,
)
from dpprobe.study.written import STORE_MARK

STORE_PREFIX = workflow.storage_settings.default_storage_prefix.rstrip("/")
# Lists a person's files: a walk through their folders, which no job without a store is to wait for.
STORE_PLACES = Folders.of(STUDY) if IN_STORE else None
FETCHES = 16  # at a time
STORED_SIZES = {}  # in bytes, by the path of the copy


def store_settings_given():
    """The settings of the store that have a value, by name."""
    settings = vars(STORE.settings) if STORE.settings else {}
    return [name for name in SECRETS if settings.get(name)]


def check_store():
    """Ends a run whose study cannot work with its store, or whose folders hold other files than its copies."""
    if STORE is not None:
        name = workflow.storage_settings.default_storage_provider
        faults = store_faults(
            STUDY,
            provider=name,
            version=version(f"snakemake-storage-plugin-{name}"),
            prefix=STORE_PREFIX,
            given=store_settings_given(),
            address=getattr(STORE.settings, "endpoint_url", None),
        )
        if faults:
            raise StudyError("\n".join(faults))
        if warning := plain_address(STORE.settings.endpoint_url):
            print(f"dpprobe: warning: {warning}", file=sys.stderr)
    elif fault := prefix_alone(STORE_PREFIX):
        raise StudyError(fault)
    try:
        check_marks(STUDY, STORE_PREFIX if STORE is not None else None)
    except DpprobeError as error:
        raise StudyError(str(error)) from None


def check_access():
    """Ends a run that may not list the bucket, or not write there, before it begins any work."""
    from botocore.exceptions import BotoCoreError, ClientError

    doing = "list"
    try:
        next(stored_objects(f"{STORE_KEY}/"), None)
        if not workflow.output_settings.dryrun:
            doing = "write into"
            store_client().put_object(
                Bucket=STORE_BUCKET, Key=f"{STORE_KEY}/{STORE_MARK}"
            )
    except (BotoCoreError, ClientError) as error:
        raise StudyError(
            f"--default-storage-prefix {STORE_PREFIX}: cannot {doing} it ({error}); check that the bucket exists, the "
            "credentials and their rights, and --storage-s3-endpoint-url"
        ) from None


def where_it_lies(modify):
    """Leaves files on the disk that belong there, and keeps copies of what people look at."""

    def modified(modifier, path, property=None):
        if is_callable(path) or is_flagged(path, "storage_object"):
            return modify(modifier, path, property)
        resolved = os.path.normpath(workflow.pathvars.apply(str(path)))
        if STORE_PLACES.stays(resolved):
            return path
        stored = modify(modifier, path, property)
        if not is_flagged(stored, "storage_object"):
            # the copy has the same path, for which `modify` takes the file to be no other
            stored = flag(modifier.apply_default_storage(path), PATH_MODIFIER_FLAG)
        if STORE_PLACES.shown(resolved):
            stored.flags["storage_object"].keep_local = True
        return stored

    return modified


def below_prefix(path):
    """The path below the working directory of a copy that Snakemake would put into .snakemake/storage."""
    path = Path(path)
    return path.relative_to(STORE_ROOT) if path.is_relative_to(STORE_ROOT) else path


def store_client():
    """The client of S3 that Snakemake's plugin has made; it may be used by several threads."""
    return STORE.s3c.meta.client


def stored_objects(prefix):
    """The objects of the store whose keys begin with a prefix, a thousand a request."""
    pages = store_client().get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=STORE_BUCKET, Prefix=prefix):
        yield from page.get("Contents", ())


async def list_all(storage_object, cache):
    """Asks once for all files of the study, instead of several times for each of them."""
    parent = storage_object.get_inventory_parent()
    if parent in cache.exists_in_storage.has_inventory:
        return
    for each in stored_objects(f"{STORE_KEY}/"):
        key = storage_object.cache_key(
            storage_object._local_suffix_from_key(each["Key"])
        )
        cache.mtime[key] = Mtime(storage=each["LastModified"].timestamp())
        cache.size[key] = STORED_SIZES[key] = each["Size"]
        cache.exists_in_storage[key] = True
    cache.exists_in_storage.has_inventory.add(parent)


def fetch(folder, suffix=""):
    """Copies files of a folder onto the disk, but for those whose copies are there and no older."""
    if STORE is None or not workflow.is_main_process:
        return

    def fetch_one(copy):
        with atomic_path(Path(copy.path)) as temporary:
            store_client().download_file(STORE_BUCKET, copy.key, str(temporary))
            os.utime(temporary, (copy.time, copy.time))  # clocks may differ

    objects = stored_objects(f"{STORE_KEY}/{folder}")
    copies = [*changed_objects(objects, root=STORE_KEY, suffix=suffix)]
    if copies:
        write_marks(STUDY, STORE_PREFIX)
    with ThreadPoolExecutor(FETCHES) as threads:
        list(threads.map(fetch_one, copies))


@cache
def fetch_once(folder, suffix):
    """The same, once for all that ask for it while the run is planned."""
    fetch(folder, suffix)


def fetch_shown():
    """Copies onto the disk what people look at, also of earlier runs elsewhere."""
    for name in sorted(SHOWN):
        fetch(f"{STUDY.results_dir}/{name}")


def fetch_before_update(persistence, path):
    """Copies a cell that is there already onto the disk, where its job keeps it if it is current."""
    place = STORE.object(f"{STORE_PREFIX}/{path}")
    if not path.exists():
        place.local_path().parent.mkdir(parents=True, exist_ok=True)
        place.retrieve_object()


async def remove_copies(job, kept):
    """Removes from the disk what a failed job has made; in the store there is nothing of it."""
    for file in job.output:
        if file.is_storage or file not in kept:
            await file.remove(only_local=True)


STORE = workflow.storage_registry.default_storage_provider
if workflow.is_main_process:
    check_store()
if STORE is not None:
    STORE_BUCKET, _, STORE_KEY = STORE_PREFIX.removeprefix("s3://").partition("/")
    STORE_ROOT = STORE.object(f"{STORE_PREFIX}/x").local_path().parent
    if workflow.is_main_process:
        check_access()
    # Copies have the paths that the files have on disk: scripts, records and messages name the same.
    StorageObjectBase.local_path = (
        lambda place, original=StorageObjectBase.local_path: below_prefix(
            original(place)
        )
    )
    StorageObjectBase.cache_key = (
        lambda place, suffix=None, original=StorageObjectBase.cache_key: str(
            below_prefix(original(place, suffix))
        )
    )
    PathModifier.modify = where_it_lies(PathModifier.modify)
    S3Object = STORE.get_storage_object_cls()
    # Upstream: snakemake-storage-plugin-s3 0.3.6 lists one folder of the bucket and asks for every other file alone.
    S3Object.inventory = list_all
    # Upstream: the plugin takes a bucket that does not answer for an empty one, and makes one before it stores a file.
    S3Object.bucket_exists = lambda place: True
    # Upstream: the plugin deletes a bucket that gets empty, and asks of every object if it is a folder; none is one.
    S3Object.remove = lambda place: place.s3obj().delete()
    S3Object.is_dir = lambda place: False
    # Tests: tests/workflow/test_object_store.py
    # Upstream: Snakemake 9.27 does not copy files marked with update() onto the disk.
    PersistenceBase.backup_output = fetch_before_update
    # Upstream: Snakemake 9.27 deletes what a failed job's files are called in the store, those marked with update() too.
    Job.cleanup = remove_copies
    if workflow.is_main_process and not workflow.output_settings.dryrun:
        write_marks(STUDY, STORE_PREFIX)
    # of tables made elsewhere: their rows decide how much memory and time is asked for
    fetch(f"{STUDY.data_dir}/", "dataset.json")
