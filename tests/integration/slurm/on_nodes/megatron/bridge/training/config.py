"""Bridge's own validation."""

import os
from typing import Any


def runtime_config_update(container: Any) -> None:
    assert int(os.environ["WORLD_SIZE"]) % container.model.pipeline_model_parallel_size == 0
