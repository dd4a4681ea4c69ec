"""Errors have one place, which costs nothing to import; they travel between processes."""

from __future__ import annotations

import json
import pickle
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
    "text",
    [
        "https://api.example/?signal=on&design=new&monkey=1&author=me&compass=n&passage=2&keys=3",
        "say retry_token=3; token=4 is another",
        "https://api.example/?max_tokens=7&SignatureVersion=2&SignatureMethod=HmacSHA256&token=",
        "https://api.example/?monkeys&x=key&turkey=1&Monkey=2&Signal=3&Author=4&MONKEY=5",
        "s3://bucket/job?region=eu&endpoint_override=localhost:9000&scheme=http",
    ],
)
def test_what_is_no_secret_is_shown(text):
    assert masked(text) == text
