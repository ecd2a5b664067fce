/* The log of an evaluation: a line of JSON that identifies the evaluation, then a line for each question, appended as
 * it is answered, so that a stopped evaluation can continue. */
#ifndef WN_EVAL_LOG_H
#define WN_EVAL_LOG_H

#include <jansson.h>
#include <stdio.h>
#include "winnow/model.h"

struct wn_eval_log {
  FILE *f; /* NULL: no log */
  const char *path;
};
/* What identifies a model: weights, attention and control tokens; freed with json_decref. */
wn_status wn_eval_log_model(wn_context *ctx, const wn_model *model, json_t **out);

/* How a log is opened. */
struct wn_eval_log_use {
  const char *path; /* NULL: no log */
  json_t *head;     /* taken over, also after an error; NULL: memory ran out */
  bool resume;      /* takes the lines of a log with the same head; a log with another is refused */
  wn_status (*take)(wn_context *ctx, void *user, const char *where, const json_t *line); /* gets a complete line */
  void *user;
};
/* Opens the log for writing behind what it has, or anew where it has no line of a question. An incomplete last line is
 * cut off. */
wn_status wn_eval_log_open(wn_context *ctx, const struct wn_eval_log_use *use, struct wn_eval_log *out);
/* Writes a line, taken over; NULL: memory ran out. */
wn_status wn_eval_log_add(wn_context *ctx, const struct wn_eval_log *log, json_t *line);
wn_status wn_eval_log_flush(wn_context *ctx, const struct wn_eval_log *log);
void wn_eval_log_close(struct wn_eval_log *log);

#endif
