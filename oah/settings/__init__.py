"""Settings: environment first, then ``oah.toml``, then the default.

One nested section per adapter, process and policy. Top-level names that users meet most have short environment names
(``OAH_DATABASE_URL``); sections nest with ``__`` (``OAH_WORKER__SLOTS``). Durations are seconds at this rim.
"""

from oah.settings.fleet import KubernetesSettings, PoolScaleSettings, ScaleSettings
from oah.settings.policies import (
    ChildSettings,
    HookSettings,
    LimitSettings,
    MailSettings,
    RedisSettings,
    RetentionSettings,
    RetrySettings,
    WebhookSettings,
)
from oah.settings.processes import (
    ControllerSettings,
    GatewaySettings,
    JobsSettings,
    PressureSettings,
    WorkerSettings,
)
from oah.settings.root import MEMORY_URL, AuthMode, HomeMode, RecoveryStrategy, Settings
from oah.settings.section import Section

__all__ = [
    "AuthMode",
    "ChildSettings",
    "ControllerSettings",
    "GatewaySettings",
    "HomeMode",
    "HookSettings",
    "JobsSettings",
    "KubernetesSettings",
    "LimitSettings",
    "MEMORY_URL",
    "MailSettings",
    "PressureSettings",
    "PoolScaleSettings",
    "RecoveryStrategy",
    "RedisSettings",
    "RetentionSettings",
    "RetrySettings",
    "ScaleSettings",
    "Section",
    "Settings",
    "WebhookSettings",
    "WorkerSettings",
]
