/* One attention call on the caller's contiguous arrays: the public operation of winnow/attention.h on the context's
 * backend. Arrays that the caller leaves out but the computation needs (y, M, the rows' log-sum-exp) are allocated
 * once, in the plan; running it allocates nothing. Memory beyond the caller's: B*H*T numbers for the log-sum-exp, B*T
 * for M, and the backend's scratch. If the backend's memory is not the host's, the plan holds a copy of all arrays
 * there: each run copies them there and back, or they stay until they are taken (wn_attention_plan_put). */
#include <string.h>

#include "attention/regions.h"
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "base/misuse.h"
#include "ops/check.h"
#include "ops/terms.h"

struct wn_attention_plan {
  wn_context *ctx;
  struct wn_exec exec;
  struct wn_attention op;
  double *mem_loss; /* [1], the caller's; NULL: not wanted */
  double mem_coef;  /* eps / groups */
  bool backward, forward_done, stays;
  wn_attention_config config;
  wn_attention_arrays arrays;
  void *y, *lse, *M, *dM, *cut, *dot, *ungated,
      *scratch;                   /* allocated by the plan; y and M only if the caller gave none */
  struct wn_call_regions regions; /* the arrays' copies in the backend's memory, if that is not the host's */
  void *there;
  struct wn_attention op_there; /* op with its arrays in the backend's memory; on the host op itself */
  void *sum;                    /* [1] double: the sum of L_mem, in the backend's memory */
  void *counts_there;
  const int32_t *counts; /* [B] row_count; its copy's place on the backend; where L_mem reads it */
};

static struct wn_stride heads_first(int64_t heads, int64_t T, int64_t D) {
  return (struct wn_stride){.b = heads * T * D, .t = D, .h = T * D};
}

static void *array_at(const wn_attention_arrays *a, size_t offset) {
  void *p;
  memcpy(&p, (const char *)a + offset, sizeof p);
  return p;
}

/* Checks each mechanism's arrays: if it is on, its inputs must be given; if it is off, none of its results may be asked
 * for. */
static wn_status check_mechanisms(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *a) {
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    const bool enabled = m->is_enabled(config);
    for (int k = 0; k < m->array_count; k++) {
      const struct wn_mechanism_array *row = &m->arrays[k];
      const bool present = enabled && (!row->present || row->present(config));
      const bool input = row->role != WN_ARRAY_RESULT;
      if (present && input && !array_at(a, row->array))
        return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: %s needs the array %s", m->name, row->name);
      if (!present && !input && array_at(a, row->array))
        return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: %s is asked for without %s%s", row->name, m->name,
                       enabled ? "'s option for it" : "");
      if (!present && input && array_at(a, row->array_gradient))
        return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: d%s is asked for without %s%s", row->name, m->name,
                       enabled ? "'s option for it" : "");
      if (input && !a->dy && array_at(a, row->array_gradient))
        return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: d%s is asked for without dy", row->name);
    }
  }
  return WN_OK;
}

static wn_status check_arrays(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *a) {
  int64_t n = 0;
  const bool shaped = a->B >= 1 && a->T >= 1 && a->H >= 1 && a->Hkv >= 1 && a->D >= 1;
  if (!shaped || __builtin_mul_overflow(a->B, a->H, &n) || __builtin_mul_overflow(n, a->T, &n) ||
      __builtin_mul_overflow(n, a->D, &n) || n > INT64_MAX / 64)
    return wn_fail(ctx, WN_ERR_SHAPE,
                   "attention: B %lld, T %lld, H %lld, Hkv %lld, D %lld: each must be at least 1 and the arrays fit in "
                   "memory",
                   (long long)a->B, (long long)a->T, (long long)a->H, (long long)a->Hkv, (long long)a->D);
  if (a->H % a->Hkv)
    return wn_fail(ctx, WN_ERR_SHAPE, "attention: %lld heads are not a multiple of %lld key-value heads",
                   (long long)a->H, (long long)a->Hkv);
  if (a->dtype != WN_F32 && a->dtype != WN_F64)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: dtype %s, expected F32 or F64", wn_dtype_name(a->dtype));
  const struct wn_attention_shape shape = {.heads = a->H, .kv_heads = a->Hkv, .head_size = a->D};
  WN_TRY(wn_attention_config_check(ctx, "attention", config, &shape));
  WN_TRY(check_mechanisms(ctx, config, a));
  if (a->Tk < 0 || a->Tk > INT64_MAX / 64 / (a->B * a->H * a->D))
    return wn_fail(ctx, WN_ERR_SHAPE, "attention: Tk is %lld; the arrays must fit in memory", (long long)a->Tk);
  for (int64_t b = 0; a->row_count && b < a->B; b++)
    if (a->row_count[b] < 0 || a->row_count[b] > a->T)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: row_count[%lld] is %d, expected 0 to %lld", (long long)b,
                     a->row_count[b], (long long)a->T);
  if (!config->bidirectional && (a->Tk > 0 || a->key_count))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: Tk and key_count are for bidirectional attention");
  if (!a->dy && (a->dq || a->dk || a->dv))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: gradients are asked for without dy");
  return WN_OK;
}

static void fill_operation(const wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *a,
                           struct wn_attention *op) {
  const int64_t Tk = a->Tk > 0 ? a->Tk : a->T;
  *op = (struct wn_attention){.B = a->B, .Tq = a->T, .Tk = Tk, .H = a->H, .Hkv = a->Hkv, .D = a->D};
  op->q = a->q, op->k = a->k, op->v = a->v, op->y = a->y;
  op->s_q = op->s_y = heads_first(a->H, a->T, a->D);
  op->s_k = op->s_v = heads_first(a->Hkv, Tk, a->D);
  op->doc_start = a->doc_start;
  op->slots.evicted_at = a->evicted_at;
  op->slots.groups = a->evicted_groups;
  op->key_count = a->key_count;
  op->dy = a->dy, op->dq = a->dq, op->dk = a->dk, op->dv = a->dv;
  wn_attention_terms(config, -1, a->D, op);
  op->dropout.p = 0; /* only training drops weights; a public call has no seed */
  op->sel.dead_share = ctx->dead_keys;
  op->threshold.control = a->control;
  const struct wn_attention_dims dims = {.B = a->B, .T = a->T, .H = a->H, .Hkv = a->Hkv, .D = a->D};
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    if (!m->is_enabled(config)) continue;
    if (m->layout) m->layout(&dims, op);
    for (int k = 0; k < m->array_count; k++) {
      const struct wn_mechanism_array *row = &m->arrays[k];
      if (row->present && !row->present(config)) continue;
      wn_mechanism_bind(row, array_at(a, row->array), array_at(a, row->array_gradient), op);
    }
  }
}

wn_status wn_attention_call(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                            struct wn_attention *out) {
  WN_TRY(check_arrays(ctx, config, arrays));
  fill_operation(ctx, config, arrays, out);
  return WN_OK;
}

/* The operation adds to gradients of parameters; a public call returns them alone, so they begin at zero. */
static wn_status clear_parameter_gradients(const wn_attention_plan *p) {
  const wn_attention_arrays *a = &p->arrays;
  const struct wn_memory *memory = p->exec.backend->memory;
  const struct wn_attention_dims dims = {.B = a->B, .T = a->T, .H = a->H, .Hkv = a->Hkv, .D = a->D};
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    for (int k = 0; m->is_enabled(&p->config) && k < m->array_count; k++) {
      const struct wn_mechanism_array *row = &m->arrays[k];
      if (row->role != WN_ARRAY_PARAMETER && row->role != WN_ARRAY_SHARED) continue;
      if (row->present && !row->present(&p->config)) continue;
      int64_t shape[4];
      size_t bytes = wn_dtype_size(a->dtype);
      for (int d = row->shape(&p->config, &dims, shape) - 1; d >= 0; d--) bytes *= (size_t)shape[d];
      void *gradient = wn_call_regions_there(&p->regions, array_at(a, row->array_gradient));
      if (gradient) WN_TRY(memory->zero(p->ctx, gradient, bytes));
    }
  }
  return WN_OK;
}

/* The call on arrays of the backend's memory. */
static wn_status plan_place(wn_attention_plan *p) {
  const struct wn_memory *memory = p->exec.backend->memory;
  const int32_t *rows = p->arrays.row_count;
  p->op_there = p->op;
  p->counts = rows;
  if (p->mem_loss) WN_TRY(memory->allocate(p->ctx, "L_mem of an attention plan", sizeof(double), &p->sum));
  if (memory->host) return WN_OK;
  wn_call_regions_find(&p->op, p->exec.dtype, WN_CALL_TRAINING, &p->regions);
  WN_TRY(memory->allocate(p->ctx, "arrays of an attention plan", p->regions.bytes, &p->there));
  wn_call_regions_place(&p->regions, p->there);
  p->op_there = wn_call_regions_call(&p->regions, &p->op, WN_CALL_TRAINING);
  if (!rows) return WN_OK;
  const size_t bytes = (size_t)p->op.B * sizeof *rows;
  WN_TRY(memory->allocate(p->ctx, "row counts of an attention plan", bytes, &p->counts_there));
  p->counts = p->counts_there;
  return WN_OK;
}

wn_status wn_attention_plan_create(wn_context *ctx, const wn_attention_config *config,
                                   const wn_attention_arrays *arrays, wn_attention_plan **out) {
  WN_CHECK_WORK(WN_POINTER(config), WN_POINTER(arrays), WN_POINTER(out));
  *out = NULL;
  WN_TRY(check_arrays(ctx, config, arrays));
  const size_t each = wn_dtype_size(arrays->dtype), rows = (size_t)arrays->B * (size_t)arrays->T;
  wn_attention_plan *p;
  WN_TRY(WN_ALLOC(ctx, "an attention plan", 1, &p));
  wn_handle_mark(p, WN_HANDLE_ATTENTION_PLAN);
  wn_status status = WN_OK;
  p->ctx = ctx;
  p->backward = arrays->dy != NULL;
  p->config = *config;
  p->arrays = *arrays;
  p->exec = (struct wn_exec){.ctx = ctx, .threads = ctx->threads, .dtype = arrays->dtype};
  WN_TRY_GOTO(wn_backend_of(ctx, &p->exec.backend), fail);
  fill_operation(ctx, config, arrays, &p->op);
  if (!p->op.y) {
    WN_TRY_GOTO(wn_alloc(ctx, "attention output", rows * (size_t)(arrays->H * arrays->D) * each, &p->y), fail);
    p->op.y = p->y;
  }
  WN_TRY_GOTO(wn_alloc(ctx, "attention log-sum-exp", rows * (size_t)arrays->H * each, &p->lse), fail);
  p->op.lse = p->lse;
  if (p->op.threshold.on && p->backward) {
    WN_TRY_GOTO(wn_alloc(ctx, "attention threshold", rows * (size_t)arrays->H * 2 * sizeof(double), &p->cut), fail);
    p->op.threshold.cut = p->cut;
  }
  if (p->op.exclusive.on && p->backward) {
    WN_TRY_GOTO(wn_alloc(ctx, "attention projection", rows * (size_t)arrays->H * each, &p->dot), fail);
    p->op.exclusive.dot = p->dot;
  }
  if (p->op.gate.on && p->backward) {
    WN_TRY_GOTO(wn_alloc(ctx, "attention before its gates", rows * (size_t)(arrays->H * arrays->D) * each, &p->ungated),
                fail);
    p->op.gate.ungated = p->ungated;
  }
  if (p->op.sel.on && p->op.sel.mem) {
    p->mem_loss = arrays->mem_loss;
    p->mem_coef = config->selective.mem.eps / (double)p->op.sel.groups;
    if (!p->op.sel.M) {
      WN_TRY_GOTO(wn_alloc(ctx, "attention memory lengths", rows * (size_t)p->op.sel.groups * each, &p->M), fail);
      p->op.sel.M = p->M;
    }
    if (p->backward) {
      WN_TRY_GOTO(wn_alloc(ctx, "gradient of memory lengths", rows * (size_t)p->op.sel.groups * each, &p->dM), fail);
      p->op.sel.dM = p->dM;
    }
  }
  /* The dispatch checks every call. Here the check must come before the scratch is sized from these numbers. It reads
   * arrays on the host. */
  struct wn_exec host = p->exec;
  host.backend = wn_backend_beside(ctx, p->exec.backend);
  WN_TRY_GOTO(wn_check_attention(&p->exec, &p->op, p->backward), fail);
  WN_TRY_GOTO(wn_check_attention(&host, &p->op, p->backward), fail);
  WN_TRY_GOTO(plan_place(p), fail);
  size_t bytes = wn_op_attention_scratch(&p->exec, &p->op, false);
  if (p->backward) {
    const size_t more = wn_op_attention_scratch(&p->exec, &p->op, true);
    bytes = more > bytes ? more : bytes;
  }
  WN_TRY_GOTO(p->exec.backend->memory->allocate(ctx, "attention scratch", bytes, &p->scratch), fail);
  p->exec.scratch = p->scratch;
  p->exec.scratch_bytes = bytes;
  *out = p;
  return WN_OK;
fail:
  wn_attention_plan_destroy(p);
  return status;
}

/* Copies the caller's arrays to the backend, unless they are there already. */
static wn_status plan_show(const wn_attention_plan *p) {
  const struct wn_memory *memory = p->exec.backend->memory;
  if (memory->host || p->stays) return WN_OK;
  if (p->counts_there)
    WN_TRY(memory->copy_in(p->ctx, p->counts_there, p->arrays.row_count, (size_t)p->op.B * sizeof(int32_t)));
  return wn_call_regions_show(p->ctx, memory, &p->regions);
}

static wn_status plan_take(const wn_attention_plan *p) {
  const struct wn_memory *memory = p->exec.backend->memory;
  if (p->stays) return WN_OK;
  if (p->mem_loss) {
    WN_TRY(wn_memory_read(p->ctx, memory, p->mem_loss, p->sum, sizeof(double)));
    *p->mem_loss *= p->mem_coef;
  }
  return memory->host ? WN_OK : wn_call_regions_take(p->ctx, memory, &p->regions);
}

static struct wn_memory_loss plan_memory_loss(const wn_attention_plan *p, void *M) {
  return (struct wn_memory_loss){.B = p->op.B,
                                 .G = p->op.sel.groups,
                                 .T = p->op.Tq,
                                 .doc_start = p->op_there.doc_start,
                                 .count = p->counts,
                                 .M = M,
                                 .sum = p->sum,
                                 .scale = p->mem_coef};
}

wn_status wn_attention_plan_forward(wn_attention_plan *plan) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(plan, ATTENTION_PLAN));
  plan->forward_done = false;
  WN_TRY(plan_show(plan));
  WN_TRY(wn_op_attention_forward(&plan->exec, &plan->op_there));
  if (plan->mem_loss) {
    const struct wn_memory_loss loss = plan_memory_loss(plan, plan->op_there.sel.M);
    WN_TRY(wn_op_memory_loss_forward(&plan->exec, &loss));
  }
  WN_TRY(plan_take(plan));
  plan->forward_done = true;
  return WN_OK;
}

wn_status wn_attention_plan_backward(wn_attention_plan *plan) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(plan, ATTENTION_PLAN));
  if (!plan->backward) return wn_fail(plan->ctx, WN_ERR_ARGUMENT, "attention: backward of a plan made without dy");
  if (!plan->forward_done) return wn_fail(plan->ctx, WN_ERR_ARGUMENT, "attention: backward before a forward");
  WN_TRY(plan_show(plan));
  WN_TRY(clear_parameter_gradients(plan));
  if (plan->dM) {
    void *dM = wn_call_regions_there(&plan->regions, plan->dM);
    const struct wn_memory_loss loss = plan_memory_loss(plan, dM);
    const size_t bytes = (size_t)(loss.B * loss.G * loss.T) * wn_dtype_size(plan->exec.dtype);
    WN_TRY(plan->exec.backend->memory->copy(plan->ctx, dM, plan->op_there.sel.M, bytes));
    WN_TRY(wn_op_memory_loss_backward(&plan->exec, &loss));
  }
  WN_TRY(wn_op_attention_backward(&plan->exec, &plan->op_there));
  return plan_take(plan);
}

wn_status wn_attention_plan_put(wn_attention_plan *plan) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(plan, ATTENTION_PLAN));
  plan->stays = false;
  WN_TRY(plan_show(plan));
  plan->stays = true;
  return WN_OK;
}

wn_status wn_attention_plan_take(wn_attention_plan *plan) {
  WN_CHECK_ARGUMENTS(NULL, WN_HANDLE(plan, ATTENTION_PLAN));
  if (!plan->stays) return wn_fail(plan->ctx, WN_ERR_ARGUMENT, "attention: arrays are taken that were not put");
  plan->stays = false;
  return plan_take(plan);
}

void wn_attention_plan_destroy(wn_attention_plan *plan) {
  WN_CHECK_OR(, WN_HANDLE(plan, ATTENTION_PLAN));
  void *const there[] = {plan->there, plan->counts_there, plan->sum, plan->scratch};
  wn_free(plan->y);
  wn_free(plan->lse);
  wn_free(plan->M);
  wn_free(plan->dM);
  wn_free(plan->cut);
  wn_free(plan->dot);
  wn_free(plan->ungated);
  for (size_t i = 0; plan->exec.backend && i < sizeof there / sizeof *there; i++)
    plan->exec.backend->memory->release(there[i]);
  wn_free(plan);
}

wn_status wn_attention_run(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays) {
  WN_CHECK_WORK(WN_POINTER(config), WN_POINTER(arrays));
  wn_attention_plan *plan = NULL;
  WN_TRY(wn_attention_plan_create(ctx, config, arrays, &plan));
  wn_status status = wn_attention_plan_forward(plan);
  if (status == WN_OK && arrays->dy) status = wn_attention_plan_backward(plan);
  wn_attention_plan_destroy(plan);
  return status;
}
