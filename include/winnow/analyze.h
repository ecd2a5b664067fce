/* winnow: what a model attends to. Functions return structs and print nothing. */
#ifndef WINNOW_ANALYZE_H
#define WINNOW_ANALYZE_H

#include <stddef.h>
#include "winnow/kv.h"
#include "winnow/train.h"

WN_EXPERIMENTAL_BEGIN

/* The input: a source, or a text with a tokenizer, read as by wn_eval and wn_eval_text. Rows after a sequence's last
 * target are padding and are skipped. Budgets with cache_positions are WN_ERR_UNSUPPORTED. */
typedef struct wn_analysis_input {
  const wn_data_source *source;
  const wn_tokenizer *tok;
  const char *text;
  size_t bytes;
  const wn_eval_options *options; /* may be NULL; batch 0: 1 to 8 sequences, fewer the longer they are */
} wn_analysis_input;

/* ---- spans (Sukhbaatar, Grave, Bojanowski, Joulin, ACL 2019) ---- */

/* One head. Spans are in tokens: the mask begins to fall at distance S*z and is 0 from S*z + R on. A static span is one
 * number. Dynamic spans have statistics over all tokens of a text, in bins of S/8192 tokens. */
typedef struct wn_span_head {
  double span;        /* S*z, the mean over tokens */
  double keys;        /* min(S*z + R, S, the window): keys that have a weight, the mean over tokens */
  double quantile[5]; /* of S*z: least, lower quartile, median, upper quartile, largest */
} wn_span_head;

/* One layer. */
typedef struct wn_span_layer {
  double span;   /* mean over heads of S*z */
  double widest; /* largest over heads (and tokens) of S*z */
  int64_t reach; /* how far back some head of the layer can see, in tokens; with dynamic spans, by their limit. The
                    layer never has to cache more. -1: no bound */
  int64_t recurrence_rows; /* tokens of earlier blocks that an evaluation caches; `recurrence` where the span does not
                              shorten it */
  int64_t cache_tokens; /* tokens of a decoding cache that the layer can see; `context + recurrence` where the span does
                           not shorten it */
} wn_span_layer;

/* Operations for one token at inference; a multiplication and an addition count as one, as in the paper. This count
 * reproduces the 42M of the paper's Table 1 for 12 layers of width 512 and an average span of 314. It also reproduces
 * the shares of section 3: feed-forward 62% at a span of 256, attention with its projections 82% at 8192. It gives
 * 216.6M for the large model of Table 1 (24 layers of width 768, feed-forward 4096, an average span of 245). The table
 * says 179M, which is fewer than the 208M weights that each prediction multiplies once (docs/mechanisms.md, "Spans in a
 * model"). For every layer:
 *
 *   maps       query, key, value and output projections: C (H + 2 Hkv) D + H D C
 *   ffn        2 C F, or 3 C F for SwiGLU
 *   attention  q.k and the sum of weighted values: 2 D for each key and head
 *
 * Not counted, as in the paper: embedding and output projection, the product with position vectors (D per key and
 * head), norms, softmax, the projections that dynamic spans have of their own. `attention` counts the `keys` of each
 * head; `attention_together` gives every head those of the widest, as when heads are computed together;
 * `attention_full` gives every head S keys, a fixed span. */
typedef struct wn_span_operations {
  double maps, ffn;
  double attention, attention_together, attention_full;
  double total, total_together, total_full;
} wn_span_operations;

/* The spans of a model, and the operations and memory that they save. */
typedef struct wn_span_report {
  bool dynamic;
  int64_t layers, heads, recurrence, context;
  double limit, ramp;        /* S, R */
  uint64_t tokens;           /* over which dynamic spans were measured; 0 for static ones */
  double span, keys, widest; /* means over heads and layers of S*z and of keys; the largest S*z */
  wn_span_operations operations;
  /* Bytes of one sequence, float32. States: cached by segment recurrence, C per token. Cache: keys and values, 2 Hkv D
   * per token. */
  double state_bytes, state_bytes_full, cache_bytes, cache_bytes_full;
  int64_t state_bytes_token, cache_bytes_token; /* of one token in one layer */
  wn_span_layer *layer;                         /* [layers] */
  wn_span_head *head;                           /* [layers, heads] */
} wn_span_report;

/* input: needed for dynamic spans; not read for static ones, may be NULL. WN_ERR_UNSUPPORTED: the model has no spans,
 * or dynamic ones without an input. The report is the caller's, to be released with wn_span_report_destroy. */
wn_status wn_analyze_spans(wn_context *ctx, wn_model *model, const wn_analysis_input *input, wn_span_report **out);
void wn_span_report_destroy(wn_span_report *report); /* NULL is allowed */

/* Dynamic spans token by token (figure 5 of the paper), in the order of the text. A token begins a word if its first
 * character other than white space is a letter or a digit (every character beyond ASCII counts as one) and stands after
 * white space or at the beginning of the text. */
typedef struct wn_span_tokens {
  int64_t count, layers, heads;
  int32_t *id;                    /* [count] */
  double *mean;                   /* [count] S*z, the mean over layers and heads */
  float *span;                    /* [count, layers, heads] S*z */
  uint8_t *start;                 /* [count] 1: the token begins a word; 0 without a tokenizer */
  int64_t starts, before, others; /* three kinds of tokens: those that begin a word; of the others, those whose next
                                     token, which they predict, begins one; the rest */
  double start_mean, before_mean, other_mean; /* the mean of `mean` over each kind; 0: there are none */
} wn_span_tokens;
/* One sequence at a time, whatever the options' batch. WN_ERR_UNSUPPORTED: the model has no dynamic spans. Released
 * with wn_span_tokens_destroy. 4 L H bytes a token. */
wn_status wn_analyze_span_tokens(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                                 wn_span_tokens **out);
void wn_span_tokens_destroy(wn_span_tokens *tokens); /* NULL is allowed */

/* ---- meaningful attention (Fernandez, Unsal, "How Much Attention is 'All You Need'?", section 4) ----
 *
 * For each row, head and layer: the fewest content tokens whose weights sum to at least tau times the weight of all
 * content tokens (equation 3). Control tokens are left out. The attention counts while it runs, for all shares tau in
 * one pass and without a T x T matrix; src/backends/cpu/attention/tile_look.inc states the cost. */

/* The shares tau for which tokens are counted, and the control tokens. */
typedef struct wn_meaning_options {
  size_t size;            /* sizeof the struct (context.h) */
  const double *taus;     /* [tau_count] ascending in (0,1]; NULL: 0.5 to 1 in steps of 0.05 */
  int tau_count;          /* at most 64 */
  const int32_t *control; /* [control_count] ids of control tokens; all others are content */
  int control_count;
} wn_meaning_options;

/* Tokens needed, over rows (and heads, layers). Quantiles are exact up to 32 tokens and within 1/16 beyond. */
typedef struct wn_meaning_cell {
  double mean, quantile[3]; /* a tenth, half and nine tenths of the rows need at most this many */
} wn_meaning_cell;

/* Tokens needed for each share, by context length. */
typedef struct wn_meaning_report {
  int64_t layers, heads;
  int tau_count, length_count;
  double *taus;           /* [tau_count] */
  int64_t *length;        /* [length_count] 1, 2, 4, ...: entry i covers the rows whose context length (tokens of the
                             document up to and including the row) is above length[i-1] and at most length[i] */
  uint64_t *rows;         /* [length_count] number of these rows; 0: the cells are 0 */
  double *context;        /* [length_count] their mean context length */
  double *content;        /* [length_count] their mean count of content tokens, masked or not */
  wn_meaning_cell *all;   /* [length_count, tau_count] */
  wn_meaning_cell *layer; /* [length_count, tau_count, layers] */
  wn_meaning_cell *head;  /* [length_count, tau_count, layers, heads] */
  int64_t points;         /* rows; for each: */
  double *x;              /* [points] its context length */
  double *y;              /* [tau_count, points] tokens needed, mean over layers and heads */
  wn_eval_result eval;    /* of the same pass */
} wn_meaning_report;

/* WN_ERR_UNSUPPORTED for models whose segment recurrence is in use (options->recurrence -1 turns it off) and for
 * encoders' inputs. Memory beyond the workspace: for each length, layers * heads * tau_count histograms of about 16
 * log2(context) bins. */
wn_status wn_analyze_meaning(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                             const wn_meaning_options *options, wn_meaning_report **out);
void wn_meaning_report_destroy(wn_meaning_report *report); /* NULL is allowed */

/* ---- fits of tokens needed against context length (same paper, section 5.4, equations 6 to 8) ---- */

/* The kinds of fitted curves. */
typedef enum wn_fit_kind {
  WN_FIT_SQRT,   /* "square root": y = a + b sqrt(x) */
  WN_FIT_LOG,    /* "logarithmic": y = a + b ln(x + 1) */
  WN_FIT_LINEAR, /* "linear":      y = a + b x */
} wn_fit_kind;
#define WN_FIT_COUNT 3
const char *wn_fit_name(wn_fit_kind kind);

/* A curve through points: y = intercept + slope f(x). */
typedef struct wn_fit {
  double intercept, slope;
  double r2, adjusted_r2; /* 1 - (1 - r2) (n - 1) / (n - 2) */
  double aic;             /* n (ln(2 pi) + ln(mse) + 1) + 4: Gaussian errors, two coefficients, as statsmodels' OLS */
  double mse;             /* sum of squares / n */
  int64_t n;
} wn_fit;
/* Ordinary least squares by QR. WN_ERR_ARGUMENT unless x >= 0, n >= 3, the x differ and all squares are finite. Needs n
 * doubles of memory. */
wn_status wn_fit_curve(wn_context *ctx, wn_fit_kind kind, const double *x, const double *y, int64_t n, wn_fit *out);
double wn_fit_at(wn_fit_kind kind, const wn_fit *fit, double x);

/* ---- the sweep over tau (same paper, section 4.2) ----
 *
 * The model under a threshold (keys attention.threshold) at each share tau: its loss, the accuracy of its most likely
 * next token, and the share of tasks that greedy decoding answers token for token. The optimum is the smallest tau from
 * which on all
 *   meet
 *   P(tau) >= P_B + gamma (P(1) - P_B)
 * where P is minus the loss, the accuracy, or the share of tasks. (The paper's equation 2 asks for the largest such
 * tau, which is always 1; its results are the smallest.) P_B is the performance without the content: on a text, each
 * token is predicted from the token before it alone (a window of 1); a task has a second prompt, without the
 * content. */

typedef struct wn_sweep_task {           /* token ids, borrowed; at least one in each array */
  const int32_t *prompt, *bare, *answer; /* bare: the prompt without its content */
  int64_t prompt_count, bare_count, answer_count;
} wn_sweep_task;

/* The shares and tasks of a sweep. */
typedef struct wn_sweep_options {
  size_t size;        /* sizeof the struct (context.h) */
  const double *taus; /* [tau_count] ascending in (0,1]; at most 64 */
  int tau_count;
  double gamma;           /* in (0,1); the paper's is 0.95 */
  const int32_t *control; /* [control_count] ids of tokens that are always kept */
  int control_count;
  const wn_sweep_task *tasks; /* [task_count] */
  int64_t task_count;
  void (*progress)(void *user, uint64_t done, uint64_t total); /* may be NULL */
  void *user;
} wn_sweep_options;

/* The model's performance under one share. */
typedef struct wn_sweep_point {
  double tau, loss, perplexity, accuracy, exact, seconds;
  uint64_t tokens; /* of the text */
} wn_sweep_point;

/* The result of a sweep over shares, with the smallest that suffices. */
typedef struct wn_sweep_report {
  int count;
  wn_sweep_point *point;         /* [count] */
  wn_sweep_point full, baseline; /* full: without a threshold; baseline: without the content */
  double gamma;
  int best_loss, best_accuracy, best_exact; /* indices into point; -1: none, or not measured */
} wn_sweep_report;

/* input NULL: only tasks. Afterwards the model is unchanged, except that its control tokens are cleared. */
wn_status wn_analyze_sweep(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                           const wn_sweep_options *options, wn_sweep_report **out);
void wn_sweep_report_destroy(wn_sweep_report *report); /* NULL is allowed */
/* The rule by itself: the index of the optimum in performance [count], where larger is better. -1: no tau meets it, or
 * `full` is no better than `baseline`. */
int wn_sweep_optimum(const double *performance, int count, double baseline, double full, double gamma);

/* ---- what heads attend to ----
 *
 * Means over rows; those of a layer are also over its heads. Weights are those that mix the values: under a threshold,
 * those of the keys that it keeps. */

/* Number of octaves of distance by which weights are summed. */
#define WN_LOOK_OCTAVES 26
typedef struct wn_look_head { /* all fields are doubles */
  /* The attention similarity bias (Zhai, "Exclusive Self Attention", section 2, figure 1). */
  double value_similarity;  /* cosine of v_i and v_j, mean over the pairs i != j of a document, then over documents */
  double self_weight;       /* a_ii */
  double output_similarity; /* cosine of y_i and v_i; y as the layer returns it (0 under XSA without a gate) */
  double entropy;           /* -sum a log2 a, bits; learned sinks count as one key */
  double effective;         /* 2^entropy: keys */
  double first;             /* weight on the document's first token (Xiao et al. 2023, attention sinks) */
  double early;             /* on its first `early` tokens */
  double control;           /* on control tokens */
  double learned;           /* on learned sinks */
  double distance;          /* sum of a_ij (i - j) */
  double octave[WN_LOOK_OCTAVES]; /* weight by distance: 0; 1; 2 and 3; 4 to 7; ... */
} wn_look_head;

/* Which tokens count as early and as control tokens. */
typedef struct wn_look_options {
  size_t size;            /* sizeof the struct (context.h) */
  int64_t early;          /* 4 as in StreamingLLM; at least 1 */
  const int32_t *control; /* [control_count] ids */
  int control_count;
} wn_look_options;

/* What the heads of a model attend to. */
typedef struct wn_look_report {
  int64_t layers, heads, early;
  uint64_t tokens;     /* rows analysed */
  wn_look_head *layer; /* [layers] */
  wn_look_head *head;  /* [layers, heads]; value_similarity is that of its key-value head */
  wn_eval_result eval;
} wn_look_report;
wn_status wn_analyze_look(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                          const wn_look_options *options, wn_look_report **out);
void wn_look_report_destroy(wn_look_report *report); /* NULL is allowed */

/* ---- survival of tokens under budgets (kv.h) ---- */

/* Number of ages at which held tokens are counted: 1, 2, 4, ... rows. */
#define WN_SURVIVAL_AGES 24
typedef struct wn_survival_policy {
  wn_policy policy;
  double perplexity;
  uint64_t tokens;                /* tokens of all layers and key-value heads */
  double lifetime;                /* mean number of rows that see a token: from its own to its eviction or its
                                     document's end */
  double evicted;                 /* share evicted before the document's end */
  double alive[WN_SURVIVAL_AGES]; /* share of tokens still held 1, 2, 4, ... rows after their own, among those whose
                                     documents go on that far; -1: there are none */
} wn_survival_policy;
typedef struct wn_survival_report {
  int count;
  wn_survival_policy *policy; /* [count] in the order of the budgets */
  double *overlap; /* [count,count] of the tokens that policy i holds at the end of a sequence, the share that policy j
                      holds too; over the first 64 sequences */
} wn_survival_report;
/* budgets [count], at most one of each policy. WN_ERR_CONFIG as in wn_budgets_check. */
wn_status wn_analyze_survival(wn_context *ctx, wn_model *model, const wn_analysis_input *input,
                              const wn_budgets *const *budgets, int count, wn_survival_report **out);
void wn_survival_report_destroy(wn_survival_report *report); /* NULL is allowed */

WN_API_END
#endif
