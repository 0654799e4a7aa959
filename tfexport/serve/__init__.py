"""Translation over HTTP, in several protocols, with the schedulers of open bundles.

It needs FastAPI, granian, prometheus-client and sentencex, which the extra ``serve`` installs.
"""

from tfexport.errors import missing_dependency

try:
    import fastapi as _fastapi  # noqa: F401
    import granian as _granian  # noqa: F401
    import prometheus_client as _prometheus_client  # noqa: F401
    import sentencex as _sentencex  # noqa: F401
except ImportError as error:
    need = f"serving needs {error.name or 'a web framework'}"
    raise missing_dependency(need, extra="serve") from None

from tfexport.serve.models import model_name as model_name
from tfexport.serve.server import bind as bind
from tfexport.serve.server import bind_path as bind_path
from tfexport.serve.server import inherited as inherited
from tfexport.serve.server import run as run
from tfexport.serve.server import url_of as url_of
from tfexport.serve.service import Service as Service
from tfexport.serve.settings import ModelSettings as ModelSettings
from tfexport.serve.settings import Settings as Settings
