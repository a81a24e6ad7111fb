#!/usr/bin/env bash
# The browser tests with the servers and kernels of another environment: ipywidgets 7.7.1, as on Colab, and what can show it.
# Everything else (torch, the course's requirements) is taken from the Python that is given.
set -euo pipefail
python=$1
venv=build/venv-widgets7
if ! [ -f "$venv/.ready" ]; then
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -q ipywidgets==7.7.1 'jupyterlab_widgets<2' 'jupyterlab>=3.6,<4' 'voila>=0.3,<0.5'
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$site" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-course.pth"
    touch "$venv/.ready"
fi
COURSE_WIDGETS_VENV=$venv exec "$python" -m pytest tests/browser
