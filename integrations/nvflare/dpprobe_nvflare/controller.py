"""The server's side: passes the files of each site on to all others, until all are complete.

It holds masked sums only, and can neither read nor change them: dpprobe signs them.
"""

from __future__ import annotations

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from dpprobe_nvflare.turns import FIRST, LATER, add_answers


class SitesController(ModelController):
    """Sends all clients the files that came in the last turn, and collects what is new.

    Args:
      clients: the names of the clients that train the head, all of which must answer.
    """

    def __init__(self, clients: list[str]) -> None:
        super().__init__(persistor_id="", ignore_result_error=False)
        self.clients = clients

    def run(self) -> None:
        files: dict[str, bytes] = {}
        sent: set[str] = set()
        action, turn, complete = FIRST, 0, False
        while not complete:
            turn += 1
            asked = FLModel(
                params={name: files[name] for name in sorted(set(files) - sent)},
                current_round=turn,
                meta={"known": sorted(files)},
            )
            sent = set(files)
            results = self.send_model_and_wait(task_name=action, data=asked, targets=self.clients)
            answers = {
                each.meta["client_name"]: (each.meta["status"], each.params) for each in results
            }
            if missing := sorted(set(self.clients) - set(answers)):
                raise RuntimeError(f"no answer of {', '.join(missing)}")
            complete = add_answers(files, answers) and action == LATER
            action = LATER
            size = sum(map(len, files.values()))
            self.info(f"turn {turn}: {len(files)} files, {size:,} bytes")
