"""Errors have one place, which costs nothing to import; they travel between processes."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import traceback

import pytest

from clonos import errors
from clonos.core.decisions import Fail
from clonos.errors import SourceError, masked
from clonos.nodes.errors import failure_of
from clonos.sources.files_reader import FileList
from clonos.storage.files import files_of

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ClonosError)
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_travels(kind):
    made = kind("what", "went wrong") if kind is errors.CallError else kind("what", where="here")
    found = pickle.loads(pickle.dumps(made))
    assert type(found) is kind
    assert str(found) == str(made)
    assert kind.__module__.startswith("clonos.errors")


def test_they_import_nothing_else():
    code = "import sys, clonos.errors; print(*(m for m in sys.modules if m.startswith('clonos')))"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert set(found.stdout.decode().split()) == {
        "clonos", "clonos.version", "clonos.errors", "clonos.errors.base", "clonos.errors.causal",
    }  # fmt: skip


@pytest.mark.parametrize("opened", [files_of, FileList.find])
def test_not_even_its_cause_tells_keys(opened):
    """Those of S3 often have slashes, of which Arrow complains with the whole URI."""
    uri = f"s3://KEY:SE/{'CR'}{'ET'}@bucket/job"
    with pytest.raises(errors.ClonosError, match="%2F") as caught:
        opened(uri)
    assert "CRET" not in "".join(traceback.format_exception(caught.value))


def test_what_a_slot_reports_by_name_is_known():
    fail = Fail(task=0, error="UnusableStore", message="no such bucket")
    assert type(failure_of(fail, "out[0]")) is errors.UnusableStore


@pytest.mark.parametrize(
    "name",
    [
        *("token", "access_token", "authToken", "api_key", "apikey", "api-key", "APIKEY", "key"),
        *("sig", "signature", "X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token"),
        *("AWSAccessKeyId", "access_key", "accountKey", "subscription-key", "password", "passwd"),
        *("pwd", "pass", "client_secret", "SharedAccessKey", "auth", "jwt", "passcode"),
        *("masterKey", "sasKey", "user[password]", "app.key", "auth[key]", "user%5Bpassword%5D"),
        *("hmac", "hdnts", "hdnea", "otp", "code_verifier", "client_assertion", "SAMLResponse"),
        *("sid", "session_id", "PHPSESSID", "JSESSIONID", "cookie", "creds", "bearer", "pw"),
        *("primaryKey", "routing_key", "sslkey", "X-Goog-Signature", "OSSAccessKeyId"),
        *("api%5fkey", "p%61ssword", "x%2Dfunctions%2Dkey", "tokens.token", "keyToken"),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "cannot read s3://bucket/job?region=eu&{}=S3CR/ET%20x",
        "Max retries exceeded with url: /v1?{}=S3CR/ET&region=eu (Caused by ...)",
        "('https://api.example/?{}=S3CR/ET')",
        "jdbc:sqlserver://db;{}=S3CR/ET;database=shop",
        "https://me.example/#{}=S3CR/ET",
        "https://me.example/?region=eu;{}=S3CRü;ET?x",
        "b'/?a=1&{}=S3CR\\xc3ET'",
    ],
)
def test_parameters_of_uris_that_are_secrets_are_not_shown(name, text):
    error = SourceError(text.format(name), remedy=f"see {text.format(name)}")
    assert "S3CR" not in str(error)
    assert "ET" not in str(error)
    assert f"{name}=***" in error.what
    written = masked(json.dumps(f'"{text.format(name)}"'))
    assert "ET" not in json.loads(written), "it is still JSON"


@pytest.mark.parametrize(
    ("place", "asked", "secrets"),
    [
        ("shop.azurewebsites.net/api/charge", "code=h3Jk/o8xQ2VwZ9a==&clientId=default", ["code"]),
        (
            "prod-1.logic.azure.com/workflows/7/triggers/manual/paths/invoke",
            "api-version=2016-10-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=Xo0bHu-3_x",
            ["sig"],
        ),
        (
            "a.blob.core.windows.net/container/blob",
            (
                "sv=2022-11-02&ss=b&srt=sco&sp=rl&se=2026-01-01T00:00:00Z&st=2025-01-01&spr=https&sr=c"
                "&skoid=1&sktid=2&skt=3&ske=4&sks=b&skv=5&sdd=1&saoid=6&suoid=7&sig=a%2Bb%3D"
            ),
            ["sig"],
        ),
        (
            "bucket.s3.amazonaws.com/key",
            (
                "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F2026&X-Amz-Date=20260101T000"
                "000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=0f1e"
                "&x-id=GetObject&X-Amz-Checksum-Mode=ENABLED&X-Amz-Security-Token=FwoGZ"
            ),
            ["X-Amz-Credential", "X-Amz-Signature", "X-Amz-Security-Token"],
        ),
        (
            "d1.cloudfront.net/x",
            "Expires=1767225600&Policy=eyJ9&Signature=ab~c_&Key-Pair-Id=K2JCJMDEHXQW5F",
            ["Signature"],
        ),
        (
            "me.example/callback",
            "state=abc&auth_code=4/0AX4XfWjh&ticket=ST-1856339-aA5Yuvrxz",
            ["auth_code", "ticket"],
        ),
    ],
)
def test_of_an_address_that_is_signed_only_the_secrets_are_not_shown(place, asked, secrets):
    shown = f"cannot reach https://{place}?{asked}"
    for name in secrets:
        shown = re.sub(f"(?<=[?&]{name}=)[^&]+", "***", shown)
    assert masked(f"cannot reach https://{place}?{asked}") == masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://api.example/?code=404&country_code=DE&zip_code=10115&status_code=503&session=morning",
        "https://api.example/?partition_key=7&sortKey=a&foreign_key=b&PublicKey=c&idempotency_key=d",
        "https://api.example/?tokenizer=bpe&token_type=bearer&codec=zstd&code_challenge_method=S256",
        "https://api.example/?side=left&hash=1&pwned=no&cookies=yes&credit=4&photopic=1&hmacs=2",
        "https://api.example/?signal=on&design=new&monkey=1&author=me&compass=n&passage=2&keys=3",
        "say retry_token=3; token=4 is another",
        "https://api.example/?max_tokens=7&SignatureVersion=2&SignatureMethod=HmacSHA256&token=",
        "https://api.example/?monkeys&x=key&turkey=1&Monkey=2&Signal=3&Author=4&MONKEY=5",
        "s3://bucket/job?region=eu&endpoint_override=localhost:9000&scheme=http",
    ],
)
def test_what_is_no_secret_is_shown(text):
    assert masked(text) == text
