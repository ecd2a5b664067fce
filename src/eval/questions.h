/* The questions of a task as tokens, with what has been found for each. */
#ifndef WN_EVAL_QUESTIONS_H
#define WN_EVAL_QUESTIONS_H

#include "eval/task.h"
#include "text/tokenizer.h"

struct wn_asked_request {
  size_t at;              /* of its first token in `ids` */
  int64_t n, context;     /* tokens in all; of them the context, at least 1 */
  int64_t chars, bytes;   /* of the bare choice */
  double log_probability; /* sum over the continuation's tokens */
  bool greedy;            /* each of them is the most probable */
};

enum wn_asked_how { WN_ASKED_OPEN, WN_ASKED_SCORED, WN_ASKED_RESUMED, WN_ASKED_REUSED };

struct wn_asked {
  size_t first; /* request */
  int count;
  int gold;              /* -1: nothing to choose */
  int64_t common;        /* tokens that all requests begin with, short of the last token of each */
  int64_t longest;       /* tokens of a request after the common ones, the most */
  int64_t rows;          /* tokens that the longest request reads: what a budget must hold to evict nothing */
  enum wn_asked_how how; /* its answer was found; open: it has none */
};

struct wn_questions {
  struct wn_asked *all;
  int64_t count;
  struct wn_asked_request *requests;
  size_t request_count;
  struct wn_ids ids;
  size_t capacity, request_capacity; /* of the arrays */
};

/* Reads at most `limit` questions (0: all) of the task's file at `path`; texts are cut at their beginning to `context`
 * tokens to read and one to score. The file's own path goes to `file` [4096]. */
wn_status wn_questions_read(wn_context *ctx, const struct wn_task_row *task, const char *path, const wn_tokenizer *tok,
                            int64_t context, int64_t limit, struct wn_questions *out);
void wn_questions_clear(struct wn_questions *questions);
/* Sets what the question's requests have in common, and how far they go beyond: common, longest, rows. */
void wn_question_compare(const struct wn_questions *questions, struct wn_asked *asked);

/* What question i gives to a metric: 0 or 1, or a log probability; false: nothing. */
bool wn_question_value(const struct wn_questions *questions, int64_t i, wn_task_metric metric, double *out);

/* The log of an evaluation: a first line that says of what, then a line for each question. */
struct wn_task_log {
  FILE *f; /* NULL: there is none */
  const char *path;
};
/* What a log tells of its model: weights, attention and control tokens; freed with json_decref. */
wn_status wn_task_log_model(wn_context *ctx, const struct wn_model *model, json_t **out);
/* Replaces the log at options->log, or goes on with it: questions that it has are WN_ASKED_RESUMED. */
wn_status wn_task_log_open(wn_context *ctx, const wn_task_options *options, const json_t *model, int64_t context,
                           struct wn_questions *questions, uint64_t *resumed, struct wn_task_log *out);
wn_status wn_task_log_add(wn_context *ctx, const struct wn_task_log *log, const struct wn_questions *questions,
                          int64_t i);
wn_status wn_task_log_flush(wn_context *ctx, const struct wn_task_log *log);
void wn_task_log_close(struct wn_task_log *log);

#endif
