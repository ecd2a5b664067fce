/* The questions of a task as tokens, with the results of each. */
#ifndef WN_EVAL_QUESTIONS_H
#define WN_EVAL_QUESTIONS_H

#include "data/lines.h"
#include "eval/log.h"
#include "eval/task.h"
#include "text/tokenizer.h"

struct wn_asked_request {
  size_t at;              /* index of its first token in `ids` */
  int64_t n, context;     /* number of tokens; how many of them are the context, at least 1 */
  int64_t chars, bytes;   /* length of the choice without its delimiter */
  double log_probability; /* sum over the continuation's tokens */
  bool greedy;            /* each of these tokens is the most probable one */
};

enum wn_asked_how { WN_ASKED_OPEN, WN_ASKED_SCORED, WN_ASKED_RESUMED, WN_ASKED_REUSED };

struct wn_asked {
  size_t first; /* index of its first request */
  int count;
  int gold;       /* the right choice; -1: there is nothing to choose */
  int64_t common; /* how many tokens all requests have in common at the beginning, the last token of each not counted */
  int64_t longest;       /* the most tokens of a request after the common ones */
  int64_t rows;          /* tokens that the longest request reads: a budget of so many evicts nothing */
  enum wn_asked_how how; /* how its answer was found; open: not yet */
};

struct wn_questions {
  struct wn_asked *all;
  int64_t count;
  struct wn_asked_request *requests;
  size_t request_count;
  struct wn_ids ids;
  size_t capacity, request_capacity; /* of the arrays */
};

enum { WN_QUESTION_WHERE = 4096 + 32 };
/* Of a file of questions (wn_lines_open), a JSON object a line; blank lines are passed over. *out: the next object, a
 * new reference, NULL at the end. where: "FILE:LINE", for messages. */
wn_status wn_question_line_next(wn_context *ctx, struct wn_lines *lines, char where[WN_QUESTION_WHERE], json_t **out);

/* Reads at most `limit` questions (0: all) of the task's file at `path`. Long texts lose their beginning, so that
 * `context` tokens are read and one more is scored. */
wn_status wn_questions_read(wn_context *ctx, const struct wn_task_row *task, const char *path, const wn_tokenizer *tok,
                            int64_t context, int64_t limit, struct wn_questions *out);
void wn_questions_clear(struct wn_questions *questions);
/* Compares the question's requests and sets common, longest and rows. */
void wn_question_compare(const struct wn_questions *questions, struct wn_asked *asked);

/* The value of question i for a metric: 0 or 1, or a log probability. False: it has none. */
bool wn_question_value(const struct wn_questions *questions, int64_t i, wn_task_metric metric, double *out);

/* Replaces the log at options->log, or continues it: questions in it become WN_ASKED_RESUMED. */
wn_status wn_task_log_open(wn_context *ctx, const wn_task_options *options, const json_t *model, int64_t context,
                           struct wn_questions *questions, uint64_t *resumed, struct wn_eval_log *out);
wn_status wn_task_log_add(wn_context *ctx, const struct wn_eval_log *log, const struct wn_questions *questions,
                          int64_t i);

#endif
