#include "train_views.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "files.h"
#include "recipe.h"

static double views_wall_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_train_saved(const char *dir, int64_t *step, uint64_t *tokens) {
  char path[4096];
  json_t *state = cli_join(path, sizeof path, dir, "state.json") ? cli_read_json(path) : NULL;
  *step = json_integer_value(json_object_get(state, "step"));
  *tokens = (uint64_t)json_integer_value(json_object_get(state, "tokens"));
  json_decref(state);
}

int cli_views_open(struct cli_views *v, const struct cli_common *common, wn_context *ctx, const char *out,
                   bool resume) {
  wn_train_log log = {0};
  char path[4096];
  if (v->port < 0 && !v->events) return 0;
  if (resume && cli_join(path, sizeof path, out, "log.jsonl") && cli_exists(path)) {
    const wn_status status = wn_train_log_load(ctx, out, &log);
    if (status != WN_OK) return cli_fail(ctx, status);
    int64_t saved;
    uint64_t tokens;
    cli_train_saved(out, &saved, &tokens); /* steps after the checkpoint will be repeated */
    while (log.count > 0 && log.step[log.count - 1] > (double)saved) log.count--;
  }
  wn_status status = WN_OK;
  if (v->port >= 0) {
    char command[1200];
    snprintf(command, sizeof command, "winnow train%s --out %.1000s --serve %d", resume ? " --resume" : "", out,
             (int)v->port);
    const wn_live_options options = {
        .size = sizeof options, .address = v->address, .port = (int)v->port, .title = out, .command = command};
    status = wn_live_start(ctx, &options, &v->live);
    if (status == WN_OK) {
      wn_live_add_log(v->live, &log);
      const char *host = v->address ? v->address : "127.0.0.1";
      const bool six = strchr(host, ':') != NULL;
      cli_note(common, "%s: http://%s%s%s:%d/", out, six ? "[" : "", host, six ? "]" : "", wn_live_port(v->live));
    }
  }
  if (status == WN_OK && v->events)
    status = wn_events_open(ctx, v->events, views_wall_time(), log.count > 0 ? (int64_t)log.step[log.count - 1] + 1 : 0,
                            &v->writer);
  wn_train_log_clear(&log);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

void cli_views_add(struct cli_views *v, wn_context *ctx, const wn_train_progress *p) {
  if (v->live) wn_live_add(v->live, p);
  if (!v->writer || v->failed) return;
  wn_event_value values[13];
  int n = 0;
  values[n++] = (wn_event_value){"loss/train", p->loss};
  values[n++] = (wn_event_value){"learning_rate", p->lr};
  values[n++] = (wn_event_value){"gradient_norm", p->grad_norm};
  values[n++] = (wn_event_value){"tokens_per_second", p->tokens_per_second};
  values[n++] = (wn_event_value){"tokens", (double)p->tokens};
  if (p->mem_loss > 0) values[n++] = (wn_event_value){"loss/mem", p->mem_loss};
  if (p->span_loss > 0) values[n++] = (wn_event_value){"loss/span", p->span_loss};
  if (p->balance_loss > 0) values[n++] = (wn_event_value){"loss/balance", p->balance_loss};
  if (p->span > 0) values[n++] = (wn_event_value){"span", p->span};
  if (p->budget > 0) values[n++] = (wn_event_value){"budget", p->budget};
  if (p->evaluated) values[n++] = (wn_event_value){"loss/validation", p->val_loss};
  if (p->evaluated) values[n++] = (wn_event_value){"accuracy/validation", p->val_accuracy};
  if (wn_events_add(ctx, v->writer, views_wall_time(), p->step, values, n) == WN_OK) return;
  v->failed = true;
  cli_warning("%s; no more events are written, training continues", wn_context_error(ctx));
}

void cli_views_close(struct cli_views *v) {
  if (v->live) wn_live_finish(v->live);
  wn_live_stop(v->live);
  wn_events_close(v->writer);
  v->live = NULL;
  v->writer = NULL;
}
