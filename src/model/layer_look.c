/* A layer's evictions, and its attention with an observer. If the arrays are not in the host's memory, an observer gets
 * copies (attention/regions.h), and a host backend computes the attention on them a second time, only for the observer;
 * the result is that of the first time. In the same way evictions that need functions on the host are found on copies
 * (wn_evictions_on_host). */
#include "attention/regions.h"
#include "backends/backends.h"
#include "kv/evictions.h"
#include "model/layer.h"
#include "ops/terms.h"

static struct wn_exec look_exec(const struct wn_run *run, size_t taken) {
  struct wn_exec exec = run->exec;
  exec.backend = wn_backend_beside(exec.ctx, exec.backend);
  exec.scratch = run->host_scratch;
  exec.scratch_bytes = run->host_scratch_bytes;
  return wn_exec_behind(&exec, taken);
}

static void look_need(struct wn_run *run, size_t bytes) {
  if (bytes > run->host_need) run->host_need = bytes;
}

static size_t look_aligned(int64_t bytes) {
  return (size_t)(bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
}

static wn_status evict_beside(struct wn_run *run, const struct wn_exec *exact, int64_t l,
                              const struct wn_attention *attention, int32_t *evicted_at) {
  const struct wn_memory *memory = wn_run_memory(run);
  const int64_t bytes = run->B * attention->slots.groups * run->T * (int64_t)sizeof *evicted_at;
  struct wn_attention call = wn_attention_forward_only(attention);
  struct wn_call_regions regions;
  struct wn_exec host = look_exec(run, 0);
  host.precision = exact->precision;
  call.y = NULL, call.slots.evicted_at = NULL, call.sel.f_out = NULL;
  if (run->measuring) {
    look_need(run, wn_call_regions_most(&call, host.dtype, WN_CALL_OUTPUT) + look_aligned(bytes) +
                       wn_evictions_scratch(&host, run->budgets, &call));
    return WN_OK;
  }
  wn_call_regions_find(&call, host.dtype, WN_CALL_OUTPUT, &regions);
  wn_call_regions_place(&regions, run->host_scratch);
  WN_TRY(wn_call_regions_read(host.ctx, memory, &regions));
  call = wn_call_regions_call(&regions, &call, WN_CALL_OUTPUT);
  host = wn_exec_behind(&host, regions.bytes);
  int32_t *found = host.scratch;
  host = wn_exec_behind(&host, look_aligned(bytes));
  WN_TRY(wn_evictions_find(&host, run->budgets, l, &call, found));
  return memory->copy_in(host.ctx, evicted_at, found, (size_t)bytes);
}

/* A layer that is run again finds the same evictions. */
wn_status wn_layer_evict(struct wn_run *run, int64_t l, const struct wn_attention *attention) {
  const int64_t P = attention->slots.groups;
  int32_t *evicted_at = run->evicted_at + l * run->B * P * run->T;
  struct wn_exec exact = run->exec; /* evictions follow from F, which is never rounded */
  exact.precision = WN_F32;
  if (!wn_run_memory(run)->host && wn_evictions_on_host(run->budgets, attention))
    return evict_beside(run, &exact, l, attention, evicted_at);
  if (!run->measuring) return wn_evictions_find(&exact, run->budgets, l, attention, evicted_at);
  const size_t need = wn_evictions_scratch(&exact, run->budgets, attention);
  if (need > run->need) run->need = need;
  return WN_OK;
}

static wn_status look_beside(struct wn_run *run, int64_t l, const struct wn_attention *attention) {
  const struct wn_layer_observer *o = run->observer;
  struct wn_attention call = wn_attention_forward_only(attention);
  struct wn_call_regions regions;
  struct wn_exec host = look_exec(run, 0);
  if (run->measuring) {
    const size_t arrays = wn_call_regions_most(&call, host.dtype, WN_CALL_OUTPUT);
    o->attention(o->user, run, l, &call);
    look_need(run, arrays + wn_op_attention_scratch(&host, &call, false));
    return WN_OK;
  }
  wn_call_regions_find(&call, host.dtype, WN_CALL_OUTPUT, &regions);
  wn_call_regions_place(&regions, run->host_scratch);
  WN_TRY(wn_call_regions_read(host.ctx, wn_run_memory(run), &regions));
  call = wn_call_regions_call(&regions, &call, WN_CALL_OUTPUT);
  host = wn_exec_behind(&host, regions.bytes);
  o->attention(o->user, run, l, &call);
  return wn_attention_looks(&call) || call.sel.F ? wn_op_attention_forward(&host, &call) : WN_OK;
}

wn_status wn_layer_attend(struct wn_run *run, int64_t l, struct wn_attention *attention) {
  const struct wn_layer_observer *o = run->observer;
  const bool observed = o && o->attention, host = wn_run_memory(run)->host;
  if (observed && host) o->attention(o->user, run, l, attention);
  WN_TRY(wn_run_attention_forward(run, attention));
  return observed && !host ? look_beside(run, l, attention) : WN_OK;
}
