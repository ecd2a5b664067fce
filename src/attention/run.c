/* One attention call on caller's contiguous arrays: the public operation of winnow/attention.h on the context's
 * backend. What the caller leaves out but the mathematics needs (y, M, the rows' log-sum-exp) is allocated once, in
 * the plan; running it allocates nothing.
 * Memory beside the caller's: B*H*T numbers for the log-sum-exp, B*T for M, and the backend's scratch. */
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "ops/check.h"

struct wn_attention_plan {
  wn_context *ctx;
  struct wn_exec exec;
  struct wn_attention op;
  double *mem_loss; /* [1], the caller's; NULL: not wanted */
  double mem_coef;  /* eps / T */
  bool backward, forward_done;
  void *y, *lse, *M, *scratch; /* the plan's own; y and M only where the caller gave none */
};

static struct wn_stride heads_first(int64_t heads, int64_t T, int64_t D) {
  return (struct wn_stride){.b = heads * T * D, .t = D, .h = T * D};
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
  const wn_selective_config *s = &config->selective;
  if (a->F && !s->enabled) return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: F is asked for without selective");
  if ((a->M || a->mem_loss) && !(s->enabled && s->mem.enabled))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: M or mem_loss is asked for without selective.mem");
  if ((a->dsq || a->dsk) && !(s->enabled && s->bilinear))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: dsq or dsk is asked for without selective.bilinear");
  if (!a->dy && (a->dq || a->dk || a->dv || a->dsq || a->dsk))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: gradients are asked for without dy");
  return WN_OK;
}

static void fill_operation(const wn_attention_config *config, const wn_attention_arrays *a, struct wn_attention *op) {
  *op = (struct wn_attention){.B = a->B, .Tq = a->T, .Tk = a->T, .H = a->H, .Hkv = a->Hkv, .D = a->D};
  op->q = a->q, op->k = a->k, op->v = a->v, op->y = a->y;
  op->s_q = op->s_y = heads_first(a->H, a->T, a->D);
  op->s_k = op->s_v = heads_first(a->Hkv, a->T, a->D);
  op->doc_start = a->doc_start;
  op->dy = a->dy, op->dq = a->dq, op->dk = a->dk, op->dv = a->dv;
  wn_attention_terms(config, a->D, op);
  if (!op->sel.on) return;
  op->sel.F = a->F;
  op->sel.M = a->M;
  if (op->sel.bilinear) {
    op->sel.sq = a->sq, op->sel.sk = a->sk, op->dsq = a->dsq, op->dsk = a->dsk;
    op->sel.s_sq = op->sel.s_sk = (struct wn_stride){.b = a->T * a->D, .t = a->D};
  }
}

wn_status wn_attention_plan_create(wn_context *ctx, const wn_attention_config *config,
                                   const wn_attention_arrays *arrays, wn_attention_plan **out) {
  if (!out) return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: no place for the plan");
  *out = NULL;
  if (!ctx || !config || !arrays) return wn_fail(ctx, WN_ERR_ARGUMENT, "attention: no context, config or arrays");
  WN_TRY(check_arrays(ctx, config, arrays));
  const size_t each = wn_dtype_size(arrays->dtype), rows = (size_t)arrays->B * (size_t)arrays->T;
  wn_attention_plan *p = NULL;
  WN_TRY(wn_alloc(ctx, "an attention plan", sizeof *p, (void **)&p));
  wn_status status = WN_OK;
  p->ctx = ctx;
  p->backward = arrays->dy != NULL;
  p->exec = (struct wn_exec){.ctx = ctx, .threads = ctx->threads, .dtype = arrays->dtype};
  WN_TRY_GOTO(wn_backend_of(ctx, &p->exec.backend), fail);
  fill_operation(config, arrays, &p->op);
  if (!p->op.y) {
    WN_TRY_GOTO(wn_alloc(ctx, "attention output", rows * (size_t)(arrays->H * arrays->D) * each, &p->y), fail);
    p->op.y = p->y;
  }
  WN_TRY_GOTO(wn_alloc(ctx, "attention log-sum-exp", rows * (size_t)arrays->H * each, &p->lse), fail);
  p->op.lse = p->lse;
  if (p->op.sel.on && p->op.sel.mem) {
    p->mem_loss = arrays->mem_loss;
    p->mem_coef = config->selective.mem.eps / (double)arrays->T;
    p->op.sel.mem_coef = p->mem_coef;
    if (!p->op.sel.M) {
      WN_TRY_GOTO(wn_alloc(ctx, "attention memory lengths", rows * each, &p->M), fail);
      p->op.sel.M = p->M;
    }
  }
  /* The dispatch checks at each call; here it must come before the scratch is sized from these numbers. */
  WN_TRY_GOTO(wn_check_attention(&p->exec, &p->op, p->backward), fail);
  size_t bytes = wn_op_attention_scratch(&p->exec, &p->op, false);
  if (p->backward) {
    const size_t more = wn_op_attention_scratch(&p->exec, &p->op, true);
    bytes = more > bytes ? more : bytes;
  }
  WN_TRY_GOTO(wn_alloc(ctx, "attention scratch", bytes, &p->scratch), fail);
  p->exec.scratch = p->scratch;
  p->exec.scratch_bytes = bytes;
  *out = p;
  return WN_OK;
fail:
  wn_attention_plan_destroy(p);
  return status;
}

/* eps * sum_b max_i M[b,i] / T */
static double memory_loss(const wn_attention_plan *p) {
  const struct wn_attention *a = &p->op;
  double sum = 0;
  for (int64_t b = 0; b < a->B; b++) {
    double most = 0; /* a row's M is at least 1 unless F is negative, and then larger */
    for (int64_t i = 0; i < a->Tq; i++) {
      const int64_t n = b * a->Tq + i;
      const double m = p->exec.dtype == WN_F64 ? ((const double *)a->sel.M)[n] : (double)((const float *)a->sel.M)[n];
      if (i == 0 || m > most) most = m;
    }
    sum += most;
  }
  return p->mem_coef * sum;
}

wn_status wn_attention_plan_forward(wn_attention_plan *plan) {
  if (!plan) return WN_ERR_ARGUMENT;
  plan->forward_done = false;
  WN_TRY(wn_op_attention_forward(&plan->exec, &plan->op));
  if (plan->mem_loss) *plan->mem_loss = memory_loss(plan);
  plan->forward_done = true;
  return WN_OK;
}

wn_status wn_attention_plan_backward(wn_attention_plan *plan) {
  if (!plan) return WN_ERR_ARGUMENT;
  if (!plan->backward) return wn_fail(plan->ctx, WN_ERR_ARGUMENT, "attention: backward of a plan made without dy");
  if (!plan->forward_done) return wn_fail(plan->ctx, WN_ERR_ARGUMENT, "attention: backward before a forward");
  return wn_op_attention_backward(&plan->exec, &plan->op);
}

void wn_attention_plan_destroy(wn_attention_plan *plan) {
  if (!plan) return;
  wn_free(plan->y);
  wn_free(plan->lse);
  wn_free(plan->M);
  wn_free(plan->scratch);
  wn_free(plan);
}

wn_status wn_attention_run(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays) {
  wn_attention_plan *plan = NULL;
  WN_TRY(wn_attention_plan_create(ctx, config, arrays, &plan));
  wn_status status = wn_attention_plan_forward(plan);
  if (status == WN_OK && arrays->dy) status = wn_attention_plan_backward(plan);
  wn_attention_plan_destroy(plan);
  return status;
}
