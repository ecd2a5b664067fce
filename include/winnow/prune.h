/* winnow: context pruning. A greedy search finds how many tokens each layer needs (Leviathan, Kalman, Matias, arXiv
 * 2410.02703, section 4). All budgets begin at the context N. Each step lowers one layer's budget by C: that of the
 * layer where this costs least in perplexity on the search set. The memory of budgets is sum_l K_l, so the saving is
 * L*N / sum_l K_l. After each step the loss on a report set, which the search never uses, is measured too. */
#ifndef WINNOW_PRUNE_H
#define WINNOW_PRUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/estimate.h"
#include "winnow/kv.h"
#include "winnow/model.h"
#include "winnow/train.h"

WN_EXPERIMENTAL_BEGIN

/* The rows of a token file on which losses are measured: blocks of the context in file order, as in wn_eval. */
typedef struct wn_prune_data {
  const char *path; /* a token file */
  int64_t rows;     /* the most rows to take, spread evenly over the file; 0: all */
  bool long_only;   /* instead each document is a row, cut at the context; documents that fill less than 90% of it are
                       skipped */
  int32_t document_token; /* with long_only: the token that starts a document; -1: that of data.json in the file's
                             folder */
} wn_prune_data;

/* Fine-tuning during a search, with the budgets in force (train.prune); evictions are constants for gradients. It is
 * one training run in the folder "tuned" of the search's folder. Every round continues that run, and its steps are
 * numbered across rounds. */
typedef struct wn_prune_finetune {
  int64_t steps, every; /* steps: optimizer steps per round; 0: no rounds. every: search steps between rounds (0: 1).
                           One more round runs before the search ends at its target */
  int64_t after;        /* optimizer steps after the search's last step; the search can then not continue. 0: none */
  double lr; /* the highest rate of a round. Each round runs the recipe's schedule, a tenth of it as warm-up. 0: the
                rate at which the recipe's schedule ends. Muon's own rate is scaled by the same factor */
  const char *checkpoint;  /* the folder that the model was loaded from: the run begins with its parameters */
  const wn_recipe *recipe; /* gives data, batch, optimizer and losses. Its model may differ from the checkpoint's only
                              in dropout and L_mem. Borrowed */
} wn_prune_finetune;

/* The options of a budget search; wn_prune_options_init sets the defaults. */
typedef struct wn_prune_options {
  size_t size; /* sizeof the struct (context.h) */
  wn_prune_data search, report;
  wn_budgets budgets; /* the policy and its options; layers and tokens are ignored */
  int64_t context;    /* tokens per row; 0: the model's context */
  int64_t step;       /* C; 8 */
  /* The largest perplexity allowed on the search set: the first of these three that is given. */
  double target;          /* the perplexity itself; 0: not given */
  wn_model *target_model; /* that of this model without budgets; NULL: not given */
  double tolerance;       /* that of the searched model without budgets, times (1 + tolerance) */
  int64_t max_steps;      /* stop after so many steps, to be resumed; 0: no limit */
  int64_t batch;          /* rows at a time; 0: 8 */
  bool plain;             /* every evaluation runs all layers and rows, and nothing is reused: for comparison */
  bool lazy;       /* losses of earlier steps are kept, and only the layer that looks cheapest is evaluated again */
  bool check;      /* lazy, race: also run the exact search, and count the steps in which it chooses another layer */
  uint64_t memory; /* bytes that the search may use in each process, fine-tuning not included; 0: half of the
                    * machine's memory, divided by the number of processes */
  wn_prune_finetune finetune; /* zeros: none */
  /* A layer that is worse than another one on a part of the search set's rows, by Student's t test of their paired
   * differences, is not evaluated on all. The probability that some step differs from the exact search's is at most
   * this, by a union bound over steps, layers and looks, so far as the test holds (src/prune/race.h). Rows are then in
   * an order drawn at random. Above 0, below 1; 0: no race. Not with lazy */
  double race;
  /* With budgets whose `when` is prompt or hold: the first so many tokens of each row are its context, which is read in
   * full and compressed to the budgets; losses are of the positions behind it, and budgets and savings of its tokens.
   * By any policy and method that needs no tokenizer, with `allot` uniform or ada, at the cost of whole trials
   * (`plain`). 0: half of the row */
  int64_t read;
} wn_prune_options;
/* Defaults: policy selective, step 8, everything else 0. */
void wn_prune_options_init(wn_prune_options *options, size_t size); /* size: sizeof *options */

/* The budgets after a step, and their losses in nats per token. */
typedef struct wn_prune_point {
  int64_t layer;   /* the layer that this step lowered; -1: before the first step */
  int64_t *tokens; /* [layers] */
  int64_t total;   /* sum of them */
  double search_loss, report_loss;
  double saving;       /* layers * context / total */
  int64_t evaluations; /* evaluations of the search set in this step */
  double seconds;      /* since the start of the search, resumed parts included */
  int64_t exact_layer; /* lazy with check: the layer that the exact search would have lowered; else `layer` */
  double exact_loss;   /* its search loss */
  int64_t tuned;       /* steps of fine-tuning before these losses, since the start of the search */
  double untuned_search_loss, untuned_report_loss; /* the losses under these budgets before fine-tuning; without
                                                      fine-tuning the same as above */
  wn_estimate search_rows, report_rows;            /* search_loss and report_loss with their errors over rows */
  wn_estimate report_change;                       /* report_loss minus that of point 0, paired row by row */
  int64_t raced_rows, race_left; /* race: rows that it read in this step, of all layers together; layers left, which
                                    were evaluated on all rows. 0, 0: there was none */
  double *report_row_loss; /* [the curve's report_rows] the sum of each row's losses; NULL: not kept (WN_PRUNE_KEPT) */
} wn_prune_point;
/* A curve keeps the losses of the report set's rows if all its possible points have at most this many together. */
#define WN_PRUNE_KEPT 500000

/* Why a search ended. "target": the next step would exceed the target; "floor": no budget can be lowered; "steps":
 * max_steps were made; "": it has not ended. */
typedef enum wn_prune_end { WN_PRUNE_OPEN, WN_PRUNE_TARGET, WN_PRUNE_FLOOR, WN_PRUNE_STEPS } wn_prune_end;
const char *wn_prune_end_name(wn_prune_end end);

/* The curve of a search: search.json. Point 0 is the model without budgets. */
typedef struct wn_prune_curve {
  wn_budgets budgets; /* policy and options; tokens NULL */
  int64_t layers, context, step, count, capacity;
  wn_prune_point *points; /* [count] */
  double *increase;   /* [layers] lazy: by how much lowering the layer raised the loss when last evaluated; NAN: never
                         evaluated */
  double target_loss; /* the largest search loss allowed; infinite: no limit */
  bool lazy, checked;
  double race; /* as in the options */
  wn_prune_end end;
  /* the last point's search loss, measured again without reuse when the search ended; NAN: not yet */
  double plain_loss;
  int64_t search_rows, report_rows;
  uint64_t search_tokens, report_tokens;  /* counted positions */
  char model[24], search[24], report[24]; /* fingerprints of the parameters and of the rows */
  int64_t finetune_steps, finetune_every; /* as in the options; 0, 0: none during the search */
  double finetune_lr;                     /* 0: no fine-tuning so far */
  char finetune_recipe[24];               /* fingerprint of its recipe; "": not known */
  int64_t tune_to; /* steps of fine-tuning that the last point should have; if it has fewer (`tuned`), a round is
                      unfinished */
  bool closed;     /* fine-tuning after the search has begun, so no search step can follow */
  double *report_row_tokens; /* [report_rows] counted positions of each row; NULL: the points have no row losses */
  /* On the report set: the saving at which the curve passes the target there (the given perplexity, or what the
   * target's model or this model without budgets has on the report set); the interval is a bootstrap over rows with the
   * budgets held fixed. Known once the search has ended, without fine-tuning. report_saving_open: the share of
   * bootstrap samples that the whole curve does not pass the target in; their savings are lower bounds. */
  wn_estimate report_saving;
  double report_saving_open;
} wn_prune_curve;
void wn_prune_curve_clear(wn_prune_curve *curve);
wn_status wn_prune_curve_load(wn_context *ctx, const char *path, wn_prune_curve *out); /* cleared by the caller */
/* The budgets of a point, with the policy; clear them with wn_budgets_clear. */
wn_status wn_prune_curve_budgets(wn_context *ctx, const wn_prune_curve *curve, int64_t point, wn_budgets *out);

/* The progress of a search. */
typedef struct wn_prune_progress {
  const wn_prune_curve *curve;     /* borrowed; count is at least 1 */
  bool stepped;                    /* a point was added; else only evaluations were run */
  int64_t evaluations, expected;   /* in this step: evaluations so far, and the most that there can be */
  uint64_t bytes;                  /* held by this search for activations, caches and copies */
  const wn_train_progress *tuning; /* set after a step of fine-tuning, else NULL */
} wn_prune_progress;
typedef void (*wn_prune_fn)(void *user, const wn_prune_progress *progress);

/* Runs a search. out_dir receives search.json, saved (synced and renamed) after every step, and budgets.json at the
 * end. With `resume` the search in out_dir continues, with the same result as one that was never interrupted; WN_ERR_IO
 * if there is none. Without `resume` a search in out_dir is an error. wn_context_cancel: WN_ERR_CANCELLED between two
 * evaluations; only the current step is lost. *out (may be NULL) is the curve, which the caller clears, also after
 * WN_ERR_CANCELLED. With options->finetune the model's parameters become the tuned ones and out_dir/tuned is the folder
 * of the run that made them; a search that was killed or cancelled during a round continues inside that round.
 * WN_ERR_MEMORY says how many rows would fit. */
wn_status wn_prune_search(wn_context *ctx, wn_model *model, const wn_prune_options *options, const char *out_dir,
                          bool resume, wn_prune_fn progress, void *user, wn_prune_curve *out);

/* ---- comparing policies ---- */

/* A model to compare. */
typedef struct wn_prune_subject {
  const char *name; /* "selective": for tables and plots */
  wn_model *model;
  const wn_prune_curve *searched; /* a search of this model: its points whose totals are close to the given budgets are
                                     measured too; or NULL */
  const wn_tokenizer *tok;        /* the model's, for tasks; else NULL */
} wn_prune_subject;
typedef struct wn_prune_compare_options {
  size_t size; /* sizeof the struct (context.h) */
  const wn_prune_subject *subjects;
  int subject_count;
  wn_prune_data data;
  int64_t context, batch; /* 0: the shortest of the models' contexts; 8 */
  const int64_t *tokens;  /* [token_count] budgets, the same in every layer */
  int token_count;
  const wn_policy *policies; /* each is measured on every model that supports it */
  int policy_count;
  wn_budgets budgets;       /* the policies' options */
  const char *const *tasks; /* [task_count] downstream tasks (task.h), at most WN_PRUNE_TASKS, that are answered under
                               every budget too, with texts of up to the model's context */
  int task_count;
  const char *task_path; /* the folder of their files */
  int64_t task_limit;    /* only the first so many questions of each task; 0: all */
  double margin; /* nats; 0.01: two losses are called equal where the 95% interval of their difference lies within
                    it */
} wn_prune_compare_options;
void wn_prune_compare_options_init(wn_prune_compare_options *options, size_t size); /* size: sizeof *options */

/* Tasks of a comparison, at most. */
#define WN_PRUNE_TASKS 16
/* A task's accuracy, 0 to 1, by wn_task_chief_metric, and its standard error. */
typedef struct wn_prune_score {
  double accuracy, error;
} wn_prune_score;

/* One measurement. The first row of each subject has no budgets: policy -1, total layers * context. */
typedef struct wn_prune_row {
  int subject, policy;    /* policy: a wn_policy, or -1 */
  bool searched;          /* true: budgets of a searched curve; false: `per_layer` in every layer */
  double per_layer;       /* total / layers */
  int64_t *tokens, total; /* [layers] of the subject's model */
  double saving, loss;
  wn_prune_score *scores; /* [the comparison's tasks]; NULL without tasks */
  wn_estimate loss_rows;  /* loss with its error over rows */
  wn_estimate change;     /* loss minus that of the same model without budgets, paired row by row; 0 for that row */
  wn_estimate difference; /* loss minus that of the first model without budgets, paired likewise */
  wn_verdict verdict;     /* of `difference`, by the comparison's margin */
  double *row_loss;       /* [the comparison's rows] the sum of each row's losses; NULL in one that was loaded */
} wn_prune_row;
/* The memory that a policy saves at the quality of the first model without budgets. */
typedef struct wn_prune_saving {
  int subject, policy; /* as in wn_prune_row */
  bool searched;
  /* Where the line through this model's results (tokens in logarithms) passes that quality; the interval is a bootstrap
   * over rows with the budgets held fixed. */
  wn_estimate saving;
  double open; /* the share of bootstrap samples that no result passes it in: their savings are lower bounds */
} wn_prune_saving;
typedef struct wn_prune_comparison {
  int64_t context, rows; /* of the data */
  uint64_t counted;      /* positions measured */
  const char **names;    /* [subjects] borrowed from the options */
  int64_t *layers;       /* [subjects] */
  int subjects;
  const char *tasks[WN_PRUNE_TASKS]; /* [task_count] names of wn_task_at */
  int task_count;
  wn_prune_row *results;
  int64_t count, capacity;
  double *row_tokens;       /* [rows] counted positions of each row; NULL in one that was loaded */
  const char *unit;         /* what a row is: "block" (consecutive blocks count as independent) or "document"; static */
  double margin;            /* nats: losses are called equal where the interval of their difference lies within it */
  wn_prune_saving *savings; /* [saving_count] */
  int64_t saving_count;
} wn_prune_comparison;
void wn_prune_comparison_clear(wn_prune_comparison *comparison);
/* Measures every policy on the same data under the same budgets. progress (may be NULL) gets the measurements done and
 * their total number. */
wn_status wn_prune_compare(wn_context *ctx, const wn_prune_compare_options *options,
                           void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                           wn_prune_comparison *out);

/* The loss under budgets, on rows chosen as in a search; budgets NULL: nothing is evicted. *counted (may be NULL):
 * positions measured. */
wn_status wn_prune_measure(wn_context *ctx, wn_model *model, const wn_prune_data *data, int64_t context, int64_t batch,
                           const wn_budgets *budgets, double *loss, uint64_t *counted);
/* The same, and the sums of each row instead, without hits; the caller clears them. */
wn_status wn_prune_measure_rows(wn_context *ctx, wn_model *model, const wn_prune_data *data, int64_t context,
                                int64_t batch, const wn_budgets *budgets, wn_eval_rows *rows);

WN_API_END
#endif
