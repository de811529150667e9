"""A site's side: writes the others' files into its exchange, runs `dpprobe site`, answers with its.

What a client runs, and where, is the site's own: `local/dpprobe-<client>.json` in the client's
workspace has what `take_turn` needs of a site. A job cannot change it.
"""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from dpprobe_nvflare.turns import FIRST, LATER, take_turn


class SiteExecutor(Executor):
    """Takes one turn per task: writes what came, lets dpprobe do what it can, sends what is new."""

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,  # noqa: ARG002 - a turn does not wait for other sites
    ) -> Shareable:
        if task_name not in (FIRST, LATER):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        name = f"dpprobe-{fl_ctx.get_identity_name()}.json"
        site = json.loads(Path(workspace.get_file_path_in_site_config(name)).read_text())
        asked = FLModelUtils.from_shareable(shareable)
        status, new = take_turn(site, task_name, asked.params, asked.meta["known"])
        return FLModelUtils.to_shareable(FLModel(params=new, meta={"status": status}))
