#include "together.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <winnow/dist.h>
#include "files.h"
#include "signals.h"

static int spoken = 2; /* a copy of standard error, before it was silenced */
static bool hushed;

/* Called from a thread of the library: a process is lost, so this one ends at once. */
static void together_lost(void *user, const char *line, bool speaks) {
  char text[1024], safe[1024];
  (void)user;
  wn_line_escape(line, safe, sizeof safe);
  const int n = snprintf(text, sizeof text, "\nwinnow: %s\n", safe);
  const size_t from = isatty(spoken) ? 0 : 1; /* start a new line after a progress bar */
  /* An error that all processes find, as in a recipe's key, is reported only once. */
  if (speaks && !hushed) speaks = cli_last_word();
  if (speaks && write(spoken, text + from, (size_t)n - from) < 0) _exit(1);
  if (!speaks)
    usleep(300000); /* a launcher ends all processes once the first has exited, so wait for the one that reports */
  _exit(1);
}

static void together_hush(void) {
  FILE *nowhere = cli_open_output("/dev/null");
  fflush(NULL);
  spoken = dup(2);
  hushed = true;
  if (!nowhere || dup2(fileno(nowhere), 1) < 0 || dup2(fileno(nowhere), 2) < 0) return;
  fclose(nowhere);
  const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < 3; i++) signal(numbers[i], SIG_IGN);
}

int cli_together_open(const struct cli_common *common, wn_context **out) {
  const int code = cli_context_open(common, out);
  if (code) return code;
  const wn_status status = wn_dist_join(*out, together_lost, NULL);
  if (status != WN_OK) return cli_fail(*out, status);
  if (!cli_together_speaks(*out)) together_hush();
  return 0;
}

bool cli_together_speaks(const wn_context *ctx) {
  return wn_dist_rank(ctx) == 0;
}

void cli_together_close(wn_context *ctx, int code) {
  if (ctx) wn_dist_leave(ctx, code == 0 || code == CLI_INTERRUPTED ? WN_OK : WN_ERR_IO);
  wn_context_destroy(ctx);
}
