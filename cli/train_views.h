/* Other views of a running training: a page in the browser, and event files for TensorBoard. */
#ifndef CLI_TRAIN_VIEWS_H
#define CLI_TRAIN_VIEWS_H

#include <winnow/report.h>
#include <winnow/serve.h>
#include "args.h"
#include "ui.h"

struct cli_views {
  int64_t port;                 /* -1: no page */
  const char *address, *events; /* address NULL: loopback; events NULL: no event files */
  wn_live *live;
  wn_events *writer;
  bool failed;
};
#define CLI_VIEWS_DEFAULTS                                                                                             \
  { .port = -1 }
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_VIEWS_OPTIONS(T, m)                                                                                        \
  CLI_OPTION(T, m.port, "serve", "PORT", "a page with the run's curves at this port; 0: a free one; -1: none",         \
             .min = -1, .max = 65535),                                                                                 \
      CLI_OPTION(T, m.address, "serve-address", "ADDRESS",                                                             \
                 "--serve: listen on this IP address; else on 127.0.0.1, reachable only from this machine"),           \
      CLI_OPTION(T, m.events, "tensorboard", "DIR", "event files for TensorBoard into this folder")
/* NOLINTEND(bugprone-macro-parentheses) */

/* The step of the checkpoint in `dir`, and the tokens trained on; 0 if there is none. */
void cli_train_saved(const char *dir, int64_t *step, uint64_t *tokens);

/* Called before a run into `out`. 0, or the exit code after reporting. */
int cli_views_open(struct cli_views *views, const struct cli_common *common, wn_context *ctx, const char *out,
                   bool resume);
/* Adds a step. A failure to write is reported once, and then ignored. */
void cli_views_add(struct cli_views *views, wn_context *ctx, const wn_train_progress *progress);
void cli_views_close(struct cli_views *views);

#endif
