"""Settings: one clear line for what is wrong, and never the value."""

import base64

import pytest

from runtime.settings import (
    DispatcherSettings,
    GatewaySettings,
    SettingsError,
    StoreSettings,
    load_settings,
)

KEY = base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("=")
GOOD = {
    "ORBIT_DATABASE_URL": "postgresql://orbit:hush@127.0.0.1/orbit",
    "ORBIT_REDIS_URL": "redis://:hush@127.0.0.1:6379/0",
    "ORBIT_CLUSTER_KEYS": f"2:{KEY},1:{KEY}",
}


def put(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    for name, value in {**GOOD, **changes}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_good_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, ORBIT_PORT="9000", ORBIT_CLUSTER="blue-1", ORBIT_PROBE_PORT="")
    gateway = load_settings(GatewaySettings)
    assert (gateway.port, gateway.cluster, gateway.lease_duration_ms) == (9000, "blue-1", 30_000)
    assert gateway.database_url.get_secret_value() == GOOD["ORBIT_DATABASE_URL"]
    assert list(gateway.key_ring().items()) == [(2, b"k" * 32), (1, b"k" * 32)]
    assert load_settings(DispatcherSettings).probe_port is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ORBIT_DATABASE_URL", None),
        ("ORBIT_DATABASE_URL", ""),
        ("ORBIT_DATABASE_URL", "mysql://orbit:hush@127.0.0.1/orbit"),
        ("ORBIT_DATABASE_URL", "http://[hush"),
        ("ORBIT_REDIS_URL", "hush"),
        ("ORBIT_CLUSTER", "hush hush"),
        ("ORBIT_CLUSTER", "hush\n"),
        ("ORBIT_PORT", "tcp://hush:80"),
        ("ORBIT_PORT", "0"),
        ("ORBIT_LEASE_DURATION_MS", "999"),
        ("ORBIT_LEASE_DURATION_MS", "hush"),
        ("ORBIT_LOG_LEVEL", "hush"),
        ("ORBIT_CLUSTER_KEYS", "hush"),
        ("ORBIT_CLUSTER_KEYS", "1:hush"),
        ("ORBIT_CLUSTER_KEYS", f"0:{KEY}"),
        ("ORBIT_CLUSTER_KEYS", f"\N{ARABIC-INDIC DIGIT ONE}:{KEY}"),
        ("ORBIT_CLUSTER_KEYS", f"1:{KEY},1:{KEY}"),
    ],
)
def test_a_wrong_setting_names_the_variable_and_hides_the_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None
) -> None:
    put(monkeypatch, **{variable: value})
    with pytest.raises(SettingsError) as caught:
        load_settings(GatewaySettings)
    line = str(caught.value)
    assert line.startswith(f"{variable}: ")
    assert "\n" not in line
    assert "hush" not in line
    assert caught.value.__cause__ is None


def test_all_wrong_settings_come_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, ORBIT_REDIS_URL=None, ORBIT_LOG_FORMAT="xml")
    with pytest.raises(SettingsError, match=r"ORBIT_REDIS_URL: is not set; ORBIT_LOG_FORMAT: "):
        load_settings(StoreSettings)


def test_secrets_stay_out_of_the_text_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch)
    text = repr(load_settings(GatewaySettings))
    assert "hush" not in text
    assert KEY not in text
