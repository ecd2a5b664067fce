/* winnow: context pruning. Which layer needs how many tokens is found by a greedy search (Leviathan, Kalman, Matias,
 * arXiv 2410.02703, section 4): all budgets begin at the context N; each step lowers by C the budget of the layer whose
 * lowering costs least in perplexity on the search set. Memory under budgets is sum_l K_l, so the saving is
 * L*N / sum_l K_l. A report set, which the search never looks at, is measured along the way. */
#ifndef WINNOW_PRUNE_H
#define WINNOW_PRUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/kv.h"
#include "winnow/model.h"
#include "winnow/train.h"

WN_EXPERIMENTAL_BEGIN

/* Rows of a token file that losses are measured on: blocks of the context in file order, as wn_eval takes them. */
typedef struct wn_prune_data {
  const char *path;       /* a token file */
  int64_t rows;           /* at most so many, spread evenly over the file; 0: all */
  bool long_only;         /* instead each document is a row, cut at the context; those that fill less than 90% of it are
                             left out */
  int32_t document_token; /* with long_only: the token that starts a document */
} wn_prune_data;

/* Training with the budgets in force (train.prune), straight through what goes, in the course of a search: one run in
 * the search's folder, "tuned", which every round continues; its steps are counted through. */
typedef struct wn_prune_finetune {
  int64_t steps, every;   /* optimizer steps a round, and a round after so many steps of the search (0: each) and before
                             a target ends it; 0: none */
  int64_t after;          /* steps once the search has ended; with them the search is closed. 0: none */
  double lr;              /* the highest of a round, which has the recipe's schedule to itself, a tenth of it warm-up;
                             0: where that of the recipe ends */
  const char *checkpoint; /* the folder that the model was loaded from: the run begins with its parameters */
  const wn_recipe *recipe; /* data, batch, optimizer, losses; of its model only dropout and L_mem may be others than the
                              checkpoint's. Borrowed */
} wn_prune_finetune;

/* What a search for budgets works with; defaults by wn_prune_options_init. */
typedef struct wn_prune_options {
  size_t size; /* sizeof the struct (context.h) */
  wn_prune_data search, report;
  wn_budgets budgets; /* the policy and its choices; layers and tokens are not read */
  int64_t context;    /* tokens a row; 0: the model's context */
  int64_t step;       /* C; 8 */
  /* The perplexity on the search set that may not be passed, the first of these that is given. */
  double target;          /* itself; 0: not given */
  wn_model *target_model; /* this model's without budgets; NULL: not given */
  double tolerance;       /* the model's own without budgets, plus this part of it */
  int64_t max_steps;      /* stop after so many steps, to be resumed; 0: no limit */
  int64_t batch;          /* rows at a time; 0: 8 */
  bool plain;             /* every evaluation from the first layer and row on: the reference for what follows */
  bool lazy;              /* increases of the loss are kept from earlier steps; only the cheapest layer's is renewed */
  bool check;             /* lazy: also do what the exact search does, and count where it chooses otherwise */
  uint64_t memory;        /* bytes that may be taken, beside those of fine-tuning; 0: half of the machine's memory */
  wn_prune_finetune finetune; /* zeros: none */
} wn_prune_options;
/* Defaults: policy selective, step 8, everything else 0. */
void wn_prune_options_init(wn_prune_options *options, size_t size); /* size: sizeof *options */

/* The budgets after a step, and what they give. Losses: nats a token. */
typedef struct wn_prune_point {
  int64_t layer;   /* lowered in this step; -1: before the first step */
  int64_t *tokens; /* [layers] */
  int64_t total;   /* sum of them */
  double search_loss, report_loss;
  double saving;       /* layers * context / total */
  int64_t evaluations; /* of the search set, this step's */
  double seconds;      /* since the search began, resumed parts included */
  int64_t exact_layer; /* lazy with check: what the exact search would have lowered; else `layer` */
  double exact_loss;   /* and its search loss */
  int64_t tuned;       /* steps of fine-tuning behind the losses, from the search's beginning on */
  double untuned_search_loss, untuned_report_loss; /* when these budgets were reached; without fine-tuning the same */
} wn_prune_point;

/* "target": the next step would pass it; "floor": no budget can be lowered; "steps": max_steps; "": not finished */
typedef enum wn_prune_end { WN_PRUNE_OPEN, WN_PRUNE_TARGET, WN_PRUNE_FLOOR, WN_PRUNE_STEPS } wn_prune_end;
const char *wn_prune_end_name(wn_prune_end end);

/* A search's course: search.json. Points are counted from 0, the model without budgets. */
typedef struct wn_prune_curve {
  wn_budgets budgets; /* policy and choices; tokens NULL */
  int64_t layers, context, step, count, capacity;
  wn_prune_point *points; /* [count] */
  double *increase;       /* [layers] lazy: increases last seen, NAN: none */
  double target_loss;     /* that may not be passed; infinite: none */
  bool lazy, checked;
  wn_prune_end end;
  double plain_loss; /* the last point's search loss, measured plainly when the search ended; NAN: not yet */
  int64_t search_rows, report_rows;
  uint64_t search_tokens, report_tokens;  /* counted positions */
  char model[24], search[24], report[24]; /* fingerprints of the parameters and of the rows */
  int64_t finetune_steps, finetune_every; /* as in the options; 0, 0: none in the course of the search */
  double finetune_lr;                     /* 0: none at all so far */
  int64_t tune_to; /* steps of fine-tuning that the last point is to have: if more than it has, a round is open */
  bool closed;     /* the round after the search has begun: no step follows */
} wn_prune_curve;
void wn_prune_curve_clear(wn_prune_curve *curve);
wn_status wn_prune_curve_load(wn_context *ctx, const char *path, wn_prune_curve *out); /* cleared by the caller */
/* The budgets of a point, with the policy; wn_budgets_clear. */
wn_status wn_prune_curve_budgets(wn_context *ctx, const wn_prune_curve *curve, int64_t point, wn_budgets *out);

/* How far a search is. */
typedef struct wn_prune_progress {
  const wn_prune_curve *curve;     /* borrowed; count is at least 1 */
  bool stepped;                    /* a point was added; else only evaluations were made */
  int64_t evaluations, expected;   /* of this step, so far and in all at most */
  uint64_t bytes;                  /* of activations, caches and copies that this search holds */
  const wn_train_progress *tuning; /* a step of fine-tuning was made; NULL: something else */
} wn_prune_progress;
typedef void (*wn_prune_fn)(void *user, const wn_prune_progress *progress);

/* Searches into out_dir: search.json, which is saved (synced and renamed) after every step, and budgets.json at the
 * end. With `resume` a search that is there goes on and gives what it would have given undisturbed; without, one that
 * is there is refused. wn_context_cancel: WN_ERR_CANCELLED between two evaluations, nothing but the step at hand lost.
 * *out (may be NULL) is the curve, to be cleared by the caller, also after WN_ERR_CANCELLED.
 * With options->finetune the model's parameters become the tuned ones, out_dir/tuned is a run's folder with them, and
 * a search killed or cancelled in a round goes on in it: the result is that of an undisturbed one all the same.
 * WN_ERR_MEMORY says how many rows would fit. */
wn_status wn_prune_search(wn_context *ctx, wn_model *model, const wn_prune_options *options, const char *out_dir,
                          bool resume, wn_prune_fn progress, void *user, wn_prune_curve *out);

/* ---- comparing policies ---- */

/* A model that takes part in a comparison. */
typedef struct wn_prune_subject {
  const char *name; /* "selective": for tables and plots */
  wn_model *model;
  const wn_prune_curve *searched; /* of this model: points of about the budgets asked for are measured too; or NULL */
} wn_prune_subject;
typedef struct wn_prune_compare_options {
  size_t size; /* sizeof the struct (context.h) */
  const wn_prune_subject *subjects;
  int subject_count;
  wn_prune_data data;
  int64_t context, batch; /* 0: the shortest of the models' contexts; 8 */
  const int64_t *tokens;  /* [token_count] budgets, the same in every layer */
  int token_count;
  const wn_policy *policies; /* each on every model that can have it */
  int policy_count;
  wn_budgets budgets; /* the policies' choices */
} wn_prune_compare_options;
void wn_prune_compare_options_init(wn_prune_compare_options *options, size_t size); /* size: sizeof *options */

/* One measurement. The first of each subject is without budgets: policy -1, total layers * context. */
typedef struct wn_prune_row {
  int subject, policy;    /* policy: a wn_policy, or -1 */
  bool searched;          /* a searched curve's budgets; else `per_layer` in every layer */
  double per_layer;       /* total / layers */
  int64_t *tokens, total; /* [layers] of the subject's model */
  double saving, loss;
} wn_prune_row;
typedef struct wn_prune_comparison {
  int64_t context, rows; /* of the data */
  uint64_t counted;      /* positions measured */
  const char **names;    /* [subjects] borrowed from the options */
  int64_t *layers;       /* [subjects] */
  int subjects;
  wn_prune_row *results;
  int64_t count, capacity;
} wn_prune_comparison;
void wn_prune_comparison_clear(wn_prune_comparison *comparison);
/* Same data, same budgets, every policy. progress (may be NULL): measurements done, of how many. */
wn_status wn_prune_compare(wn_context *ctx, const wn_prune_compare_options *options,
                           void (*progress)(void *user, uint64_t done, uint64_t total), void *user,
                           wn_prune_comparison *out);

/* The loss under budgets of rows as a search takes them; budgets NULL: unpruned. counted may be NULL. */
wn_status wn_prune_measure(wn_context *ctx, wn_model *model, const wn_prune_data *data, int64_t context, int64_t batch,
                           const wn_budgets *budgets, double *loss, uint64_t *counted);

WN_API_END
#endif
