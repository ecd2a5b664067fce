/* winnow: training and evaluation. */
#ifndef WINNOW_TRAIN_H
#define WINNOW_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/data.h"
#include "winnow/estimate.h"
#include "winnow/kv.h"
#include "winnow/model.h"

WN_STABLE_BEGIN

/* The optimizers. */
typedef enum wn_optimizer_kind {
  WN_OPT_ADAMW,
  WN_OPT_ADAGRAD,
  WN_OPT_MUON        /* Muon for the layers' projections (Jordan et al. 2024), AdamW for all other tensors */
} wn_optimizer_kind; /* "adamw", "adagrad", "muon" */
typedef enum wn_schedule_kind { WN_SCHED_COSINE, WN_SCHED_LINEAR, WN_SCHED_CONSTANT } wn_schedule_kind;

/* Which parameters learn. "all". "attention": its projections and its mechanisms' parameters. "lora": the same, but the
 * projections by low-rank updates (LoRA). "mechanisms": the mechanisms' parameters only. */
typedef enum wn_tune_kind { WN_TUNE_ALL, WN_TUNE_ATTENTION, WN_TUNE_LORA, WN_TUNE_MECHANISMS } wn_tune_kind;

/* The "train" object of a recipe. */
typedef struct wn_train_config {
  int64_t steps, batch; /* batch: sequences per micro-step */
  int64_t accumulate;   /* micro-steps per optimizer step; 1 */
  int64_t context;      /* tokens per sequence; 0: the model's context */
  int64_t shards; /* a step's sequences are cut into so many equal parts, whose gradients are summed in a fixed tree:
                     any number of processes up to this one gives the same bits (docs/clusters.md); 0: as many as there
                     are processes */
  wn_optimizer_kind optimizer;
  double lr, min_lr_ratio; /* cosine and linear end at lr * min_lr_ratio */
  int64_t warmup;          /* linear from 0 */
  wn_schedule_kind schedule;
  int64_t schedule_from; /* warm-up and decay begin after this step, to restart the schedule for further steps; 0 */
  double beta1, beta2, eps, weight_decay; /* decay: tensors of two dimensions only */
  struct {                                /* of optimizer "muon" */
    double lr;                            /* rate of the matrices, with the schedule of `lr`; default 0.02 */
    double momentum;                      /* default 0.95 */
    bool nesterov;                        /* default true */
    int64_t steps;                        /* of the Newton-Schulz iteration; default 5 */
  } muon;
  double clip;        /* global norm; 0: off */
  double clip_tensor; /* norm of each module's gradient, with q, k and v apart (Sukhbaatar et al. 2019, section 3).
                         Adagrad's sum takes the unclipped gradient, so that the step is clipped; 0: off */
  uint64_t seed;      /* parameters, data order, dropout */
  int64_t eval_every, eval_batches; /* 0: never; batches of the val split per evaluation, 0: all */
  int64_t save_every;               /* 0: at the end only */
  int64_t log_every;                /* 1 */
  bool recompute;                   /* activations of a layer are recomputed in backward */
  bool whole_recurrence; /* segment recurrence caches and reads all tokens, not only those that the layer can see; for
                            comparison */
  /* of activations stored until the backward pass: WN_F32 or WN_BF16 ("float32", "bfloat16") */
  wn_dtype activation_dtype;
  /* of matrix products in training steps. WN_F32: exact. WN_BF16: factors are rounded to bf16, sums are float32, and
   * activations that only products read are stored in bf16. ("float32", "bfloat16") */
  wn_dtype precision;
  char init[1024]; /* a checkpoint's folder whose parameters a new run starts with; "": random ones */
  bool adapt; /* the model has mechanisms that the model at `init` lacks. Their parameters start without effect, and a
                 run begins by checking that */
  bool select_from_head; /* adapt: the projections of selective.bilinear start as the selecting head's; default true */
  wn_tune_kind tune;     /* default "all"; other parameters have no gradient and no optimizer state */
  char freeze[512];      /* further tensors that do not learn: names with *, separated by commas; "": none */
  struct { /* low-rank updates W + alpha/rank B A of the projections q, k, v and out (Hu et al. 2021, arXiv 2106.09685,
              section 4.1); saved checkpoints contain them merged into W */
    int64_t rank; /* default 8 */
    double alpha; /* default 16 */
  } lora;
  double lr_mechanisms; /* factor of lr for the mechanisms' own parameters (strengths, gates, spans, ...); default 1 */
  int64_t strength_steps; /* selective.strength "scheduled": steps in which it rises from 0 to 1; of gates that `adapt`
                             adds: steps in which a ceiling on their biases falls to where they act; default 0: half of
                             the run */
  struct { /* budgets of the key-value cache (kv.h) in force in training and in the run's evaluations. Evictions are
              those of decoding; backward treats them as constants */
    char budgets[1024];         /* as wn_budgets_parse reads it; "": none */
    wn_policy policy;           /* default "selective"; a budgets.json has its own */
    int64_t from_step, to_step; /* budgets fall from the context to their values between these steps; 0, 0: in force at
                                   once */
    bool draw; /* each step draws its budgets log-uniformly between these and the context, with one draw for all layers,
                  to train one model for many budgets */
  } prune;
  struct {                      /* when L_mem (selective.mem) acts: a later start lets a model learn to predict first */
    int64_t from_step, to_step; /* its weight is 0 up to from_step and rises linearly to eps at to_step; 0, 0: eps at
                                   once */
  } mem;
  uint64_t reserved[32]; /* 0: room for what later versions add */
} wn_train_config;

/* The recipe of a training run: one JSON file. */
typedef struct wn_recipe {
  wn_model_config model;
  wn_data_config data;
  wn_train_config train;
} wn_recipe;

/* Sets every default. */
void wn_recipe_init(wn_recipe *recipe);
/* path: a JSON file, or NULL for the defaults. sets: "section.key=value", applied after the file. Unknown keys are
 * WN_ERR_CONFIG with the nearest known one; JSON errors name file, line and column. The result is resolved
 * (wn_model_config_resolve). */
wn_status wn_recipe_load(wn_context *ctx, const char *path, const char *const *sets, int set_count, wn_recipe *out);
/* The recipe that adapts the model at `model` (any that wn_model_load takes) to further mechanisms. It is the model's
 * configuration, with train.init and train.adapt, changed by the JSON file `path` (or NULL) and by the sets (mechanisms
 * are under "model.attention"). The defaults suit a short run at a small rate. An enabled mechanism starts without
 * effect by default: a learned strength, a learned gate, spans as long as the context. */
wn_status wn_adapt_recipe(wn_context *ctx, const char *model, const char *path, const char *const *sets, int set_count,
                          wn_recipe *out);
/* wn_recipe_load from a JSON text in memory [bytes]; messages name it "recipe". */
wn_status wn_recipe_parse(wn_context *ctx, const char *text, size_t bytes, const char *const *sets, int set_count,
                          wn_recipe *out);
/* All keys with type, default and help, one per line; free with wn_text_free. */
wn_status wn_recipe_help(wn_context *ctx, char **out);
wn_status wn_recipe_json(wn_context *ctx, const wn_recipe *recipe, char **out);

/* The numbers of one step. */
typedef struct wn_train_progress {
  int64_t step, steps;        /* steps done, and steps in all */
  double loss, lr, grad_norm; /* mean over answer positions, before the update; L_mem not included */
  double mem_loss;            /* the terms of L_mem and of gates with the weight in force, 0 when off */
  double span_loss;           /* adaptive span's term, 0 when off */
  double balance_loss;        /* the term of the experts' load, 0 when off */
  double span;                /* mean span in tokens over layers and heads (and tokens, with dynamic spans) */
  uint64_t workspace_bytes;   /* activations, scratch and the recurrence's cache */
  uint64_t recurrence_bytes;  /* of that, the recurrence's states, keys and values, which shrink and grow with the
                                 layers' reach */
  /* how often these were allocated anew: never while spans stay within a block of 64 tokens */
  uint64_t recurrence_moves;
  double tokens_per_second, seconds; /* of this step; since the start of the run in this process */
  double waited_seconds;             /* of this step, spent waiting for other processes; 0 with one process */
  double budget;                     /* mean of the layers' budgets in force, at most the context; 0: none */
  uint64_t tokens;                   /* seen in training so far, resumed runs included; without padding */
  bool evaluated;                    /* the fields below belong to this step */
  double val_loss, val_accuracy;     /* accuracy: share of counted positions whose arg-max is the target */
  bool saved;
  wn_estimate val_loss_rows; /* val_loss with its error over rows; belongs to this step if `evaluated` */
} wn_train_progress;
typedef void (*wn_train_fn)(void *user, const wn_train_progress *progress);

/* Trains, or with `resume` continues training. out_dir receives config.json, recipe.json, model.safetensors, the
 * tokenizer, optimizer.safetensors, state.json, and log.jsonl with one object per step.
 * A NaN loss is WN_ERR_DIVERGED; the last checkpoint stays. wn_context_cancel saves and returns WN_ERR_CANCELLED; if it
 * interrupts an evaluation, even the one after the last step, resuming makes that evaluation and reports it to
 * `progress`.
 * Resuming with the same number of threads continues bit for bit. With `resume` recipe may be NULL: that of out_dir is
 * used. Another recipe may change how the run continues, L_mem (attention.selective.mem) included, but not its model,
 * seed, optimizer or which parameters learn (WN_ERR_CONFIG). With `resume` a folder without a checkpoint is refused;
 * without it, a folder that holds a run or a model. Nothing in the folder is changed then. */
wn_status wn_train_run(wn_context *ctx, const wn_recipe *recipe, const char *out_dir, bool resume, wn_train_fn progress,
                       void *user);
/* Does dir hold a checkpoint that wn_train_run can resume? A model alone is not one. */
bool wn_train_can_resume(const char *dir);

/* A run's log.jsonl as columns. Steps repeated after a kill appear once, with their last values. seconds continue
 * across resumed parts. A field that a line lacks is NAN. */
typedef struct wn_train_log {
  int64_t count;
  double *step, *tokens, *seconds; /* [count] */
  double *loss, *lr, *grad_norm, *mem_loss, *span_loss, *span, *budget, *tokens_per_second, *val_loss, *val_accuracy;
  double *val_loss_stderr; /* over rows; older logs have none */
} wn_train_log;
/* dir: the run's folder. WN_ERR_IO without a log, WN_ERR_FORMAT naming the malformed line. An incomplete last line, as
 * a running program leaves it, is ignored. */
wn_status wn_train_log_load(wn_context *ctx, const char *dir, wn_train_log *out);
void wn_train_log_clear(wn_train_log *log);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* One step at a time, nothing saved: for benchmarks, tests and other programs. */
typedef struct wn_trainer wn_trainer;
wn_status wn_trainer_create(wn_context *ctx, wn_model *model, const wn_train_config *config, wn_trainer **out);
void wn_trainer_destroy(wn_trainer *trainer); /* NULL is allowed; the model stays, for which it counts as a session */
/* tokens, targets: [accumulate*batch, context]; doc_start likewise or NULL. Where the context has joined other
 * processes (dist.h), all pass the same arrays and each takes its parts. Allocates nothing, with one exception: with
 * segment recurrence, a step whose update moved a layer's widest span across a multiple of 64 tokens allocates at its
 * end (wn_train_progress.recurrence_moves counts these). */
wn_status wn_trainer_step(wn_context *ctx, wn_trainer *trainer, const int32_t *tokens, const int32_t *targets,
                          const int32_t *doc_start, wn_train_progress *progress);
/* For models with an encoder: the inputs of the following steps, inputs [accumulate*batch, S], and their lengths,
 * input_count [accumulate*batch] (NULL: S). Borrowed. */
void wn_trainer_set_inputs(wn_trainer *trainer, const int32_t *inputs, const int32_t *input_count, int64_t S);
/* For models with segment recurrence, where a step's rows continue those of the step before: lets the next step's rows
 * start anew. */
void wn_trainer_forget(wn_trainer *trainer);
/* Gradient of parameter tensor i of the last step (before clipping), float32 [same shape]. Borrowed. WN_ERR_UNSUPPORTED
 * where several processes share it. */
wn_status wn_trainer_gradient_at(const wn_trainer *trainer, int i, wn_safetensors_entry *out);

WN_API_END
WN_STABLE_BEGIN

/* The results of an evaluation. */
typedef struct wn_eval_result {
  double loss; /* mean negative log-likelihood per counted position, nats */
  double perplexity;
  double accuracy;      /* arg-max equals target */
  double bits_per_byte; /* 0 when the number of bytes is unknown */
  uint64_t tokens, bytes, batches;
  double seconds, tokens_per_second;
  uint64_t workspace_bytes, recurrence_bytes; /* as in wn_train_progress */
  double span;                                /* mean span in tokens over layers, heads and tokens; 0 without spans */
  const char *unit; /* what a row is: "block" (of a text, cut at the context; its blocks count as independent),
                       "document", or "case" of a synthetic task; static */
  wn_estimate loss_rows, accuracy_rows; /* `loss` and `accuracy` with their errors over rows */
  uint64_t reserved[8];                 /* 0: room for what later versions add */
} wn_eval_result;
/* The rows of an evaluation. */
typedef struct wn_eval_rows {
  wn_row_sums *sums; /* [count] in the order of reading */
  int64_t count;
  const char *unit; /* as in wn_eval_result */
} wn_eval_rows;
void wn_eval_rows_clear(wn_eval_rows *rows);
typedef struct wn_eval_options {
  size_t size;            /* sizeof the struct (context.h) */
  int64_t batch, context; /* 0: 8; the model's context */
  int64_t recurrence; /* segment recurrence: how many tokens of earlier blocks attention reaches; 0: as the model says;
                         -1: none. With recurrence a source must provide streams, and a text is cut into `batch`
                         stretches that are read block by block */
  bool whole_recurrence; /* recurrence caches and reads all tokens, also those that no head can see; for comparison */
  uint64_t max_batches;  /* 0: all of a token file, 16 of an endless source. Fewer than all take rows that are spread
                            evenly over the file or text; with recurrence the first of each stretch */
  uint64_t bytes;        /* bytes of the source's text, for bits per byte; 0: unknown */
  uint64_t seed;         /* synthetic sources */
  const wn_budgets *budgets; /* in force for each sequence and document by itself, with the same result as decoding;
                                NULL: none. Not with segment recurrence */
  void (*progress)(void *user, uint64_t done, uint64_t total);
  void *user;
  wn_eval_rows *rows; /* receives the sums of each row, which the caller clears; left as it is after an error. NULL: not
                         wanted */
} wn_eval_options;
/* WN_ERR_ARGUMENT: the length of the source's rows is not the evaluation's context, its inputs for an encoder do not
 * fit the model, or a token is outside the model's vocabulary. */
wn_status wn_eval(wn_context *ctx, wn_model *model, const wn_data_source *source, const wn_eval_options *options,
                  wn_eval_result *result);
/* Evaluates a text in memory, in blocks of the context; the tail counts too. */
wn_status wn_eval_text(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const char *text, size_t bytes,
                       const wn_eval_options *options, wn_eval_result *result);
/* The same for the tokens [count] of one text, at least two; nothing is put before them, so the first is not predicted.
 * options->bytes: bytes of the text that the other tokens stand for. */
wn_status wn_eval_tokens(wn_context *ctx, wn_model *model, const int32_t *tokens, int64_t count,
                         const wn_eval_options *options, wn_eval_result *result);

WN_API_END
#endif
