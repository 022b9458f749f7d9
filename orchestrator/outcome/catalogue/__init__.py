"""Every wording that is known, in the order in which a line is asked about them: the particular before the general."""

from orchestrator.outcome.catalogue.communication import COMMUNICATION_RULES
from orchestrator.outcome.catalogue.device import DEVICE_RULES, REMARK_RULES
from orchestrator.outcome.catalogue.gpu import GPU_RULES
from orchestrator.outcome.catalogue.host import HOST_RULES
from orchestrator.outcome.catalogue.numbers import NUMBERS_RULES
from orchestrator.outcome.catalogue.process import PROCESS_RULES
from orchestrator.outcome.catalogue.scheduler import SCHEDULER_RULES
from orchestrator.outcome.catalogue.software import SOFTWARE_RULES

RULES = (
    *HOST_RULES,
    *DEVICE_RULES,
    *GPU_RULES,
    *NUMBERS_RULES,
    *SCHEDULER_RULES,
    *SOFTWARE_RULES,
    *COMMUNICATION_RULES,
    *PROCESS_RULES,
)
"""What stops a job."""

__all__ = ["REMARK_RULES", "RULES"]
