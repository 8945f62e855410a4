#!/bin/sh
# Bring the virtual environment up to date: tools/environment.sh demo|dev|bench
#
# An environment that was left half made is removed, so that the next run begins anew: the making may have failed, pip
# may have stopped midway, the run may have been interrupted or killed, the interpreter may be gone, or the folder moved.
# An environment that something else made is used as it is, and never removed.
set -eu

VENV=${VENV:-.venv}
made=$VENV/.made-by-make    # holds the folder that it was made in
working=$VENV/.installing   # holds the process that installs; it is left behind by one that was killed

say() { printf '%s\n' "$*"; }
fail() {
  say "$*" >&2
  exit 1
}

# The first interpreter that is new enough.
find_python() {
  for name in python3 python3.14 python3.13 python3.12; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
      say "$name"
      return
    fi
  done
  say "pymc_rmhmc needs Python 3.12 or later; found: $(python3 --version 2>&1)." >&2
  say "Install one, or put it first on PATH, and run make again." >&2
  return 1
}

runs() { "$VENV/bin/python" -c '' 2>/dev/null; }
is_complete() { [ -e "$VENV/.demo" ] || [ -e "$VENV/.dev" ] || [ -e "$VENV/.bench" ]; }
is_up_to_date() { [ -e "$VENV/.$1" ] && [ -z "$(find pyproject.toml -newer "$VENV/.$1")" ]; }

# pip puts whole packages in and out of this folder, which changes the folder's own time.
pip_changed_nothing() {
  [ -z "$(find "$VENV"/lib/python*/site-packages -maxdepth 0 -newer "$working")" ]
}

stop_if_another_run_installs() {
  [ -e "$working" ] || return 0
  other=$(cat "$working")
  if [ -n "$other" ] && kill -0 "$other" 2>/dev/null; then
    say "Process $other is installing into $VENV: wait for it, and run make again." >&2
    fail "If that process is something else, remove $VENV with \`make distclean\`."
  fi
}

remove_if_spoilt() {
  if [ -e "$working" ]; then
    reason="an earlier installation was cut off"
  elif [ "$(cat "$made")" != "$PWD" ]; then
    reason="it was made in another folder, $(cat "$made")"
  elif ! runs; then
    reason="its Python no longer runs"
  else
    return 0
  fi
  say "Removing $VENV: $reason."
  rm -rf "$VENV"
}

# Runs at every exit. An environment that was complete, and is unchanged, survives a failure.
finish() {
  status=$?
  trap - EXIT INT TERM HUP
  if [ "$status" -eq 0 ]; then
    rm -f "$working"
  elif [ "$was_complete" = yes ] && pip_changed_nothing; then
    rm -f "$working"
    say "Nothing was installed (see above). $VENV is left as it was." >&2
  else
    rm -rf "$VENV"
    say "$VENV was not finished (see above) and is removed. Mend the cause, and run make again." >&2
  fi
  exit "$status"
}

install() {
  if [ ! -e "$VENV/bin/python" ]; then
    say "Making $VENV with $("$python" --version)"
    "$python" -m venv "$VENV"
  fi
  say "Installing pymc_rmhmc with $what: a minute or two, more over a slow connection"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$wanted]"
  for each in $given; do : >"$VENV/.$each"; done
}

case $1 in
  demo) wanted=demo given="demo" what="what the demonstration needs, 0.9 GB in $VENV" ;;
  dev) wanted=dev given="demo dev" what="its development tools, 1.3 GB in $VENV" ;;
  bench) wanted=dev,bench given="demo dev bench" what="its development tools and the peers, 2 GB in $VENV" ;;
  *) fail "tools/environment.sh: there is no set of packages named $1" ;;
esac
stop_if_another_run_installs
if [ -e "$made" ]; then
  remove_if_spoilt
elif [ -e "$VENV" ] && ! { runs && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }; then
  fail "make did not make $VENV, and its Python or its pip does not run. Remove it, or name another: make VENV=.venv-make"
fi
if is_up_to_date "$1"; then exit 0; fi

if [ -e "$VENV" ] && [ ! -e "$made" ]; then
  install # into somebody else's environment
  exit 0
fi
[ -e "$VENV" ] || python=$(find_python)
if is_complete; then was_complete=yes; else was_complete=no; fi
mkdir -p "$VENV"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
say "$PWD" >"$made"
say "$$" >"$working"
install
