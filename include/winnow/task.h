/* winnow: downstream tasks. Multiple choice and word prediction, scored as EleutherAI's lm-evaluation-harness 0.4.13
 * does without examples (zero-shot): the answer is the choice whose text has the largest log probability after the
 * question. Under budgets the session evicts while it reads the question and the choices, as in decoding. */
#ifndef WINNOW_TASK_H
#define WINNOW_TASK_H

#include "winnow/kv.h"
#include "winnow/model.h"
#include "winnow/tokenizer.h"

WN_EXPERIMENTAL_BEGIN

/* What a task reports. In all but the last a question counts 0 or 1. */
typedef enum wn_task_metric {
  WN_METRIC_ACC,       /* "acc": the right choice has the largest sum of log probabilities; without choices every token
                          of the continuation is the most probable one */
  WN_METRIC_ACC_NORM,  /* "acc_norm": the same with sums divided by the choice's characters */
  WN_METRIC_ACC_BYTES, /* "acc_bytes": by its bytes in UTF-8 */
  WN_METRIC_PERPLEXITY /* "perplexity": exp of minus the mean log probability of a continuation */
} wn_task_metric;
#define WN_METRIC_COUNT 4
const char *wn_task_metric_name(wn_task_metric metric); /* "?": there is none of that number */

/* A task of the library. */
typedef struct wn_task_info {
  const char *name;   /* "arc_easy" */
  const char *help;   /* one line: what a question asks for */
  const char *fields; /* the fields of a line of its file */
  unsigned metrics;   /* 1 << metric of each that is reported */
} wn_task_info;
int wn_task_count(void);
const wn_task_info *wn_task_at(int i); /* NULL: there is none of that number */
int wn_task_find(const char *name);    /* its number; -1: there is none of that name */
/* The metric by which a task is compared: acc_norm where it reports that, else acc. */
wn_task_metric wn_task_chief_metric(const wn_task_info *task);

/* The questions, and how they are scored. */
typedef struct wn_task_options {
  size_t size; /* sizeof the struct (context.h) */
  const wn_tokenizer *tok;
  const char *task;          /* a name of wn_task_at */
  const char *path;          /* a folder with TASK.jsonl or TASK.jsonl.gz, or such a file: one question per line */
  int64_t limit;             /* only this many questions, from the first on; 0: all */
  int64_t context;           /* longer texts lose their beginning; 0: the model's */
  int64_t batch;             /* questions of equal length are read together, up to this many tokens; 0: 512 */
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  wn_cache_format cache;     /* default WN_CACHE_FLOAT */
  const char *log; /* receives a line of JSON that identifies the model's weights and attention, the questions and the
                      budgets, then one line per question; NULL: none */
  const char *log_name; /* a name that a log must also have to be resumed; NULL: "" */
  bool resume;          /* questions that the log has already are not scored again; without it a log is replaced */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* in questions; may be NULL */
  void *user;
} wn_task_options;

/* The result of an evaluation on a task. */
typedef struct wn_task_result {
  uint64_t questions, resumed; /* resumed: how many of them were taken from the log */
  uint64_t reused; /* how many were taken from the evaluation without budgets, because their texts fit the budgets */
  uint64_t counted[WN_METRIC_COUNT]; /* questions that the metric is measured on; 0: the task does not report it */
  double value[WN_METRIC_COUNT];
  double stderr_[WN_METRIC_COUNT]; /* sample standard deviation / sqrt(questions); for the perplexity that of the
                                      mean log probability times the perplexity; NAN with one question */
  double low[WN_METRIC_COUNT], high[WN_METRIC_COUNT]; /* the 95% interval (winnow/estimate.h); NAN likewise */
  /* The change against the sweep's evaluation without budgets, question by question: its mean and the standard error of
   * that mean, which is smaller than that of a difference of two accuracies. For the perplexity: of the log
   * probability. */
  uint64_t compared[WN_METRIC_COUNT]; /* questions; 0: not compared */
  double change[WN_METRIC_COUNT], change_stderr[WN_METRIC_COUNT];
  double change_low[WN_METRIC_COUNT], change_high[WN_METRIC_COUNT];
  uint64_t tokens_scored, tokens_fed; /* scored: of continuations; fed: run through the model, where a question's common
                                         beginning counts once */
  uint64_t cache_bytes;               /* of the largest session, one sequence */
  double seconds;
} wn_task_result;

/* WN_ERR_FORMAT names the file, line and field. WN_ERR_CANCELLED after wn_context_cancel: the log has the questions
 * scored so far. */
wn_status wn_task_run(wn_context *ctx, wn_model *model, const wn_task_options *options, wn_task_result *result);

/* One of several evaluations of the same questions. */
typedef struct wn_task_setting {
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  const char *log;           /* as in wn_task_options, one for each setting; NULL: none */
  const char *log_name;
} wn_task_setting;

/* Answers the same questions under each of settings [count], in their order; results [count]. After a setting without
 * budgets, questions whose texts fit into a later setting's budgets are not scored again, since they give the same bits
 * (with cache_positions they are scored). The options' budgets, log and log_name must be NULL. After an error the
 * results of earlier settings are valid. */
wn_status wn_task_sweep(wn_context *ctx, wn_model *model, const wn_task_options *options,
                        const wn_task_setting *settings, int count, wn_task_result *results);

/* ---- requests of one's own ---- */

/* A continuation that is scored after its context. */
typedef struct wn_request {
  const int32_t *tokens;  /* [count] the context, then the continuation; borrowed for the call */
  int64_t count, context; /* context: how many of them are not scored; at least 1, fewer than count */
  int64_t question; /* consecutive requests with the same number are answered together: their common beginning is read
                       once */
  double log_probability; /* written: of the continuation, the sum over its tokens */
  bool greedy;            /* written: each token of the continuation is the most probable one */
} wn_request;
typedef struct wn_request_options {
  size_t size;               /* sizeof the struct (context.h) */
  int64_t context;           /* longer requests lose their beginning; 0: the model's */
  int64_t batch;             /* questions of equal length are read together, up to this many tokens; 0: 512 */
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  wn_cache_format cache;     /* default WN_CACHE_FLOAT */
  void (*progress)(void *user, uint64_t done, uint64_t total); /* in questions; may be NULL */
  void *user;
} wn_request_options;
/* Scores requests [count] as wn_task_run scores those of a task, with the same bits for the same questions. options may
 * be NULL. WN_ERR_ARGUMENT names a request without a continuation, with a token that the vocabulary does not have, or
 * with a continuation longer than the context. WN_ERR_CANCELLED after wn_context_cancel: nothing is written. */
wn_status wn_score_requests(wn_context *ctx, wn_model *model, const wn_request_options *options, wn_request *requests,
                            int64_t count);

WN_API_END
#endif
