/* One pass over a model: the state that its parts share, and the operations as they call them. Private to src/model and
 * to code that runs its layers one by one. */
#ifndef WN_MODEL_RUN_H
#define WN_MODEL_RUN_H

#include "model/config.h"
#include "model/model.h"
#include "ops/documents.h"

/* What a layer keeps of its streams' earlier tokens, newest last: rows [rows-count, rows) hold tokens; the block
 * follows them. */
struct wn_recurrence_layer {
  int64_t rows, count; /* the room's size, and tokens held */
  char *states;        /* [B, rows+block, C] hidden states at the attention's entry */
  char *f, *f_out; /* [B,G, rows+block]. f: F of each token from the rows before the block, 0 for the block's tokens.
                      f_out: the same with the block's rows added; a step writes it. NULL without selective attention */
};
/* Segment recurrence in a pass over a block of a stream (recurrence.c). */
struct wn_recurrence {
  int64_t rows;                             /* the most tokens that a layer keeps; 0: no recurrence */
  int64_t block;                            /* rows of the block: the workspace's T */
  int64_t seen;                             /* tokens of the streams before this block, kept or not */
  bool whole;                               /* keep all tokens, also those that the layer cannot see */
  bool full;                                /* when measuring: assume that all rooms are full */
  const struct wn_recurrence_layer *layers; /* [L] */
  const int32_t *positions;                 /* 0, 1, ...: [rows+block] */
};

/* What a decoder reads of its encoder (encoder.c). S 0: there is no encoder. */
struct wn_cross {
  int64_t S;
  const int32_t *count; /* [B] or NULL */
  const void *states;   /* [B*S,C] */
  void *d_states;       /* [B*S,C] added to */
  char *kv;             /* decoding: keys and values computed before, kv_bytes per layer */
  size_t kv_bytes;
};

/* The types of a layer's activations. `all` is that of every array not named below. If a pass's products round to bf16,
 * arrays that only products, the activation function and attention read are stored in bf16. */
struct wn_layer_types {
  wn_dtype all;
  wn_dtype norms; /* n1, n2 */
  wn_dtype ffn;   /* in, act, and act's gradient */
  wn_dtype rows;  /* qkv, q, k, att, and their gradients */
};
static inline struct wn_layer_types wn_layer_types_of(wn_dtype dtype) {
  return (struct wn_layer_types){.all = dtype, .norms = dtype, .ffn = dtype, .rows = dtype};
}
/* The type as the operations' fields want it, where WN_F32 (zero) means exec's dtype. */
static inline wn_dtype wn_type_field(wn_dtype type) {
  return type == WN_BF16 ? WN_BF16 : WN_F32;
}

/* One pass over the model. Arrays are in the backend's memory unless a comment says otherwise. When measuring,
 * operations do not run: the same code only finds the largest scratch that they need. */
struct wn_run {
  const struct wn_model *model;
  struct wn_exec exec;
  struct wn_layer_types types;
  bool measuring;
  size_t need;
  /* Scratch on the host, if the backend's memory is another: for observers, and for evictions by a policy's own
   * functions. */
  void *host_scratch;
  size_t host_scratch_bytes, host_need;
  int64_t B, T;
  struct wn_documents rows;       /* the batch's documents, on the host; count: as row_count */
  const int32_t *tokens;          /* [B,T] */
  const int32_t *targets;         /* [B,T], or NULL outside steps */
  const int32_t *positions;       /* [B*T] counted from the start of each token's document */
  const int32_t *doc_start;       /* [B,T] or NULL */
  const uint8_t *control;         /* [B,T] 1: a control token of a threshold; NULL: none */
  const struct wn_rotary *rotary; /* the model's, or one for more positions */
  struct wn_recurrence recurrence;
  struct wn_cross cross;
  const int32_t *key_count; /* [B] an encoder's rows; NULL: all */
  /* The first `apart` rows of a product are computed as if each were the only one (wn_linear), the rest as `pieces`:
   * each as if it were alone, of so many rows. pieces NULL: the rest is one. */
  int64_t apart;
  const int64_t *pieces;
  bool unturned; /* wn_layer_before leaves out the rotation, which comes later, by cache positions */
  bool training;
  double dropout, dropout_hidden; /* 0 outside training */
  uint64_t seed, stream;          /* dropout; stream: the first of this step's wn_run_streams */
  const wn_budgets *budgets;      /* NULL: none */
  int32_t *evicted_at;            /* [L] of [B,P,T] evictions, with budgets */
  /* [B] how many rows of each sequence are tokens: L_mem and spans leave padding out; NULL: all */
  const int32_t *row_count;
  bool no_mem;         /* a training step in which L_mem has weight 0, so M is not computed */
  double mem_coef;     /* backward only: L_mem's factor for one layer, selection and document */
  double balance_coef; /* backward only: the factor of one layer's load-balancing loss */
  double span_coef;    /* backward only: the span loss's factor for a layer's sum over heads of the mean z */
  double gate_coef;    /* backward only: the factor of what the gates of a layer keep, but for their own coefficient */
  double gate_weight;  /* as in wn_step */
  const double *gate_sums;                  /* backward only: the sums of WN_SUM_GATES, [slots][layers] */
  void *grads;                              /* [table.total], added to; NULL: forward only */
  const size_t *grad_at;                    /* as in wn_step */
  uint8_t *begun;                           /* as in wn_step */
  void (*whole)(void *user, int64_t layer); /* as in wn_step */
  void *whole_user;
  const struct wn_layer_observer *observer; /* or NULL */
};
void wn_run_init(struct wn_run *run, const struct wn_model *model, int64_t B, int64_t T);

/* The backend's memory, and what a pass does there; a measuring pass does nothing. */
static inline const struct wn_memory *wn_run_memory(const struct wn_run *run) {
  return run->exec.backend->memory;
}
wn_status wn_run_zero(const struct wn_run *run, void *to, int64_t n);                   /* n of exec->dtype */
wn_status wn_run_copy(const struct wn_run *run, void *to, const void *from, int64_t n); /* the two may overlap */

/* For observers: makes n numbers of exec->dtype readable on the host, until wn_run_close. */
wn_status wn_run_open(const struct wn_run *run, const void *x, int64_t n, void **out);
void wn_run_close(const struct wn_run *run, void *opened);

/* A parameter's values and gradient. NULL for row -1 and for a packed matrix; the gradient is NULL without
 * gradients. */
void *wn_run_param(const struct wn_run *run, int row);
/* A matrix in packed form; NULL if it is not packed. */
const struct wn_packed *wn_run_packed(const struct wn_run *run, int row);
void *wn_run_grad(const struct wn_run *run, int row);
/* Zeroes a gradient that is uninitialised, before something is added to it. */
wn_status wn_run_grad_begin(struct wn_run *run, int row);

#define WN_RUN_DECLARE(name, args, has_backward)                                                                       \
  wn_status wn_run_##name##_forward(struct wn_run *run, const args *a);                                                \
  wn_status wn_run_##name##_backward(struct wn_run *run, const args *a);
WN_OPS(WN_RUN_DECLARE)

/* Dropout; each place has random numbers of its own. Places: 0: embedding; 1+2l and 2+2l: layer l's branches; 1+2L+l:
 * its attention weights; 1+3L+l: its hidden activations; with an encoder 1+4L+l: the branch that attends to it; 1+5L+l:
 * that attention's weights; then, where gates have noise, it of layers L-1 to 0; then the encoder's own. */
wn_status wn_run_dropout(struct wn_run *run, int64_t place, void *x);
static inline uint64_t wn_decoder_streams(const wn_model_config *c) {
  return (uint64_t)(((c->encoder.layers > 0 ? 6 : 4) + (wn_model_gates_with(c, WN_GATES_NOISE) ? 1 : 0)) * c->layers +
                    1);
}
static inline uint64_t wn_run_streams(const wn_model_config *c) {
  return wn_decoder_streams(c) + (c->encoder.layers > 0 ? (uint64_t)(4 * c->encoder.layers + 1) : 0);
}
/* A norm in the model: rows of the parameter table (gain: its weight, shift: its bias), and what its forward stores for
 * its backward (mean: NULL for RMSNorm). */
struct wn_norm_site {
  int gain, shift;
  void *rstd, *mean;
  wn_dtype y_type; /* as in wn_norm */
};
/* Applied to a branch's output [B*T,C] before it is added to the residual stream, and to its gradient: dropout at
 * `place`, then residual_scale. */
wn_status wn_run_branch(struct wn_run *run, int64_t place, void *x);
/* The norm over the model's width, with a fused addition: y = norm(sum), sum = x + add. add NULL: y = norm(x), sum is
 * unused. If the site has no gain there is no norm, and y is the norm's input. */
wn_status wn_run_norm(struct wn_run *run, int64_t rows, struct wn_norm_site at, const void *x, const void *add,
                      void *sum, void *y);
struct wn_norm wn_run_norm_args(const struct wn_run *run, int64_t rows, int64_t groups, int64_t width,
                                struct wn_norm_site at);
/* The QK-norm of `heads` contiguous heads: each head by itself, or all as one (qk_norm_whole). */
struct wn_norm wn_head_norm_args(const struct wn_run *run, int64_t rows, int64_t heads, struct wn_norm_site site);
/* Backward of the norm: dx += (or, without accumulate, dx =) the gradient of x, the norm's input. */
wn_status wn_run_norm_grad(struct wn_run *run, int64_t rows, struct wn_norm_site at, const void *x, const void *dy,
                           void *dx, bool accumulate);
/* A projection of `rows` rows from K to N numbers. x, y and their gradients are contiguous arrays of the caller. */
/* The rows that an operation takes at a time if their number changes bits; r zeroed before the first. */
struct wn_run_rows {
  int64_t first, count, pieces;
  bool apart;
};
bool wn_run_rows_next(const struct wn_run *run, int64_t M, struct wn_run_rows *r);
struct wn_linear wn_run_projection(const struct wn_run *run, int64_t rows, int64_t K, int64_t N, int weight, int bias);
wn_status wn_run_project(struct wn_run *run, struct wn_linear projection, const void *x, void *y);
wn_status wn_run_project_back(struct wn_run *run, struct wn_linear projection, const void *x, const void *dy, void *dx,
                              bool accumulate);

/* The angles of the model's rotary embedding for texts of up to `rows` tokens (rotary.c); where angles depend on a
 * text's length, for texts of `rows` tokens. *out is empty if the model has none. what: named in the message if the
 * table does not fit. */
wn_status wn_rotary_create(const struct wn_model *model, const char *what, int64_t rows, struct wn_rotary *out);
void wn_rotary_clear(struct wn_rotary *rotary);
/* The factor on cos and sin. */
double wn_rotary_magnitude(const wn_model_config *config);
/* The number by which rope.factors divides frequency i, beside the scaling. */
double wn_rotary_divisor(const wn_model_config *config, int64_t i);
/* Makes the model's angles again, after rope.factors has been filled. */
wn_status wn_model_rotary_refresh(struct wn_model *model);
/* The arguments of the rotation in layer l, except rows, heads, x, ldx and positions. */
struct wn_rope wn_run_rotation(const struct wn_run *run, int64_t l);

#endif
