"""For scripts that need Python packages. need("transformers", "torch", "transformers") returns if the packages can be
imported. Otherwise it restarts the script in the environment that tools/python-env has made, or says in one line how to
make it. --help as the only argument prints the script's docstring, even without the packages."""
import importlib.util
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the repository
MAKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python-env")


def path(name):
    """An environment's Python, or None if it has not been made."""
    done = subprocess.run([MAKER, "--path", name], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def output(command):
    """The output, such as a path, of a script that reports its own errors."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.strip()


def make(name):
    """Like path(), but makes a missing environment."""
    return output([MAKER, name])


def home():
    """The folder for environments and downloads."""
    return output([MAKER, "--home"])


def missing(*modules):
    return [m for m in modules if importlib.util.find_spec(m) is None]


def also(name):
    """Adds the packages of a second environment if it has been made, for optional comparisons."""
    python = path(name)
    if python:
        sys.path += [os.path.join(os.path.dirname(os.path.dirname(python)), "lib",
                                  "python%d.%d" % sys.version_info[:2], "site-packages")]


def need(name, *modules):
    import __main__
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__main__.__doc__.strip())
        sys.exit()
    lacking = missing(*modules)
    if not lacking:
        return
    python = path(name)
    if python and os.environ.get("WINNOW_PYTHON_ENV") != name:
        os.environ["WINNOW_PYTHON_ENV"] = name
        os.execv(python, [python] + sys.argv)
    sys.exit(f"{os.path.basename(sys.argv[0])}: missing in this Python: {', '.join(lacking)}; tools/python-env {name} makes an "
             "environment with them, outside the repository, which is then taken by itself")
