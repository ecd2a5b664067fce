"""The Python packages of a script. need("transformers", "torch", "transformers") goes on where they can be imported,
else begins the script again under the environment that tools/python-env has made, else says in one line how to make it.
--help as the only argument prints the script's own text, whatever is missing."""
import importlib.util
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the repository
MAKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python-env")


def path(name):
    """The Python of an environment, or None where it has not been made."""
    done = subprocess.run([MAKER, "--path", name], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def output(command):
    """What a script that says itself what went wrong prints, such as a path."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout.strip()


def make(name):
    """The same as path, made where it is missing."""
    return output([MAKER, name])


def home():
    """The folder that environments and downloads are kept in."""
    return output([MAKER, "--home"])


def missing(*modules):
    return [m for m in modules if importlib.util.find_spec(m) is None]


def also(name):
    """Packages of a second environment, where it has been made: for what is compared with only where it is there."""
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
