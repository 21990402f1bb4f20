"""As a pod finds its API server: a service account's token, namespace and authority, over TLS."""

import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig

from oah.bootstrap.kubernetes import open_cluster, open_election
from oah.errors import InvalidRequest, Unavailable
from oah.settings import ControllerSettings, KubernetesSettings, Settings
from tests.support.clock import StillClock
from tests.support.kube_api import KubeApi

# For 127.0.0.1, signed by itself; made for this test, guards nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBbDCCARKgAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlrdWJlLnRl
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjExOTEyMDgwMDAwMDBaMBQxEjAQBgNVBAMM
CWt1YmUudGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABCqRd8JhDRfmuzak
lQ4Fjsdei9BomgNi1jEUIBkTvatQcC/pMB74dC2Zf+CoIQXFmSSUTbx8iPoiqc9D
BeSUtE6jUzBRMA8GA1UdEQQIMAaHBH8AAAEwDwYDVR0TAQH/BAUwAwEB/zAOBgNV
HQ8BAf8EBAMCAoQwHQYDVR0OBBYEFNL6oOU547+FJOAPX6zYYSPq67fVMAoGCCqG
SM49BAMCA0gAMEUCIQDf3KuON9hB9eiJxFL8EyoCMHbbOcgKvtkrwiJWzaiSeQIg
CbsyyDaoWtJRL58LPszQyd3H/Wi4S0xSR2/7Y/GAo6I=
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgVeJzfPcHoGfzbIZx
+eNYSOFsdZYrjWrpXN14f6lFjmuhRANCAAQqkXfCYQ0X5rs2pJUOBY7HXovQaJoD
YtYxFCAZE72rUHAv6TAe+HQtmX/gqCEFxZkklE28fIj6IqnPQwXklLRO
-----END PRIVATE KEY-----
"""


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a kubelet mounts."""
    files = {"token": "of-the-pod", "namespace": "fleet", "ca.crt": CERTIFICATE}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(KubeConfig.from_env.__func__, "__defaults__", (str(tmp_path), DEFAULT_KUBECONFIG))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


@pytest.fixture
def kube(account: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    api = KubeApi(rights={"of-the-pod": {"*"}})
    (account / "cert.pem").write_text(CERTIFICATE + KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "cert.pem")
    api.server.socket = context.wrap_socket(api.server.socket, server_side=True)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(urlsplit(api.url).port))
    with api.serving():
        yield api


def test_a_pod_is_elected_with_its_service_account(kube: KubeApi, account: Path) -> None:
    settings = Settings(controller=ControllerSettings(election="kubernetes"))
    cluster = open_cluster(settings)
    assert (cluster.namespace, cluster.server) == ("fleet", kube.url.replace("http:", "https:"))
    cluster.close()
    election = open_election(settings, StillClock(), broker=Nobody(), hasty=Nobody())
    assert election.lead("pod-1", lease=timedelta(seconds=15))
    assert kube.get("leases", "oah-controller")["spec"]["holderIdentity"] == "pod-1"


def test_a_server_that_another_has_signed_is_told_nothing(kube: KubeApi, account: Path) -> None:
    section = KubernetesSettings(
        api_url=kube.url.replace("http:", "https:"), token_file=account / "token", namespace="fleet"
    )
    cluster = open_cluster(Settings(kubernetes=section))
    with pytest.raises(Unavailable, match=r"(?i)certificate"):
        cluster.lease("oah-controller")
    assert kube.callers == []
    cluster.close()
    trusting = open_cluster(Settings(kubernetes=section.model_copy(update={"ca_file": account / "ca.crt"})))
    trusting.create_lease({"metadata": {"name": "l"}, "spec": {}})
    assert kube.callers == ["of-the-pod"]
    trusting.close()


def test_an_authority_that_is_not_there_is_refused_at_the_start(account: Path) -> None:
    section = KubernetesSettings(api_url="https://127.0.0.1:1", ca_file=account / "none", namespace="fleet")
    with pytest.raises(InvalidRequest, match="no way to reach"):
        open_cluster(Settings(kubernetes=section))


class Nobody:
    def lead(self, holder: str, *, lease: timedelta) -> bool:
        return False

    def resign(self, holder: str) -> None:
        """Nothing."""

    def leader(self) -> str | None:
        return None
