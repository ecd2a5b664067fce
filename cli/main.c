/* The command line: subcommands (cmd.h) over the public API in include/winnow. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <winnow/context.h>
#include "budgets.h"
#include "cmd.h"
#include "files.h"
#include "signals.h"
#include "ui.h"

static int cli_version(void) {
  wn_context *ctx = NULL;
  wn_build_info info = {0};
  wn_status status = wn_context_create(NULL, &ctx);
  if (status == WN_OK) status = wn_build_info_get(ctx, &info);
  if (status == WN_OK) printf("winnow %s (%s)\n", info.version, info.commit);
  const int code = status == WN_OK ? 0 : cli_fail(ctx, status);
  wn_context_destroy(ctx);
  return code;
}

/* Beyond the end of the stack the process ends without a word. Large frames have 135 KB each (ulimit -s; threads get as
 * much as the first one). */
static int cli_check_stack(void) {
  enum { LEAST = 1 << 20 };
  struct rlimit limit;
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST) return 0;
  return cli_error("the stack is limited to %llu KiB (ulimit -s), expected at least %d",
                   (unsigned long long)limit.rlim_cur >> 10, LEAST >> 10);
}

int main(int argc, char **argv) {
#define COMMAND_ROW(name, help) {#name, help, cmd_##name},
  static const struct cli_command commands[] = {CLI_COMMANDS(COMMAND_ROW)};
  cli_hold_standard();
  if (cli_check_stack()) return 1;
  cli_policies_init();
  signal(SIGPIPE, SIG_DFL);
  cli_signals_bus();
  signal(SIGXFSZ, SIG_IGN); /* a file beyond the size limit then fails to be written, with a message */
  int code;
  if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version")))
    code = cli_version();
  else
    code = cli_dispatch("winnow",
                        "Trains, evaluates and runs transformer language models that keep only the context they need.\n"
                        "winnow --version prints the version.",
                        commands, CLI_COUNT(commands), argc, argv);
  if (code == CLI_SHOWN) code = 0;
  errno = 0;
  if (fflush(stdout) || ferror(stdout)) {
    /* An earlier failed write has set the stream's error flag, but errno is lost. */
    int error = errno;
    if (code == 0) code = cli_error("standard output: %s", error ? strerror(error) : "it could not be written");
  }
  return code;
}
