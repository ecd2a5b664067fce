/* Evictions of the rows of a call (ops/evictions.h). A block has one sequence and one head group, and goes through the
 * rows in order, as each choice depends on earlier ones. Logits do not, and are computed before: those of a chunk of
 * rows with all keys (stored.cuh); a row reads those of the held keys. The held keys are in a list, in any order; a
 * thread has every 256th entry, and owns F and notes of the keys there.
 *
 * A row needs two barriers for the choice; three more with attention sums, for which a warp takes a head or part of
 * one; one more with votes. F and notes are doubles, summed in the order of the rows as on the host; logits and
 * attention weights are floats. */
#ifndef WN_BACKENDS_CUDA_ATTENTION_WALK_CUH
#define WN_BACKENDS_CUDA_ATTENTION_WALK_CUH

#include "backends/cuda/attention/stored.cuh"
#include "backends/cuda/evict.cuh"
#include "backends/cuda/policy.cuh"

extern "C" {
#include "ops/evictions.h"
}

namespace wn_cuda {

enum { WALK_THREADS = 256, WALK_WARPS = WALK_THREADS / 32 };

struct walk_group {
  int K, sinks, recent;
};
struct walk_args {
  stored_args s; /* raw and W: the logits of all heads, or NULL; S: of the selecting heads */
  wn_evict_rule rule;
  double scale;
  int group0, groups, first_group;
  walk_group group[WN_EVICTIONS_GROUPS];
  bool sums, piece, ring;
  int heads, choices, notes; /* of a group; choices: 0 if F is not needed */
  int matters;               /* how many rows back sums matter */
  float *note;
  int32_t *evicted_at, *left;
  double *F, *N; /* [B,groups,choices,ld], [B,groups,notes,ld] by key */
  double *score; /* [B,groups,ld] numbers that never change, or votes, by key; or scores of a kind, as held */
  wn_policy_kind kind;
  double *room;    /* [B,groups,each] of a kind whose scores change */
  int32_t *places; /* [B,groups,ld] and positions of the held keys for it */
  int64_t each;
  const void *k, *v;
  wn_gguf_type type;
  int32_t *held;  /* [B,groups,ld] held keys */
  int32_t *state; /* [B,groups,2] kept between chunks: number of held keys; start of their document */
};

/* The group of a block. */
struct walk_place {
  int b, group, choice0; /* choice0: its first selection */
  walk_group of;
  int64_t slots; /* offset of its keys in arrays by slot */
  const int32_t *at;
  int32_t *evicted_at;
  double *F, *N, *score, *room;
  int32_t *held, *state, *places;
  __device__ __forceinline__ walk_place(const walk_args &w, int n) {
    const int64_t ld = w.s.ld, row = n;
    b = n / w.groups, group = w.group0 + n % w.groups, choice0 = group * w.choices;
    of = w.group[n % w.groups];
    slots = slot_row(w.s.a, b, group);
    at = w.s.a.at ? w.s.a.at + slots : nullptr;
    evicted_at = w.evicted_at + slots;
    F = w.F + row * w.choices * ld, N = w.N + row * w.notes * ld, score = w.score + row * ld;
    held = w.held + row * ld, state = w.state + row * 2;
    places = w.places + row * ld, room = w.room + row * w.each;
  }
  __device__ __forceinline__ int position(int j) const { return at ? at[j] : j; }
};

/* The keys or values of the group's heads. */
__device__ __forceinline__ wn_policy_rows walk_kind_rows(const walk_args &w, const walk_place &p, const void *x,
                                                         const stride &s, const int32_t *index) {
  const wn_policy_rows rows = {x, index, s.h, s.t, w.type};
  const int64_t heads = w.s.a.Hkv / w.s.a.slot_groups;
  return wn_policy_rows_from(rows, WN_F32, p.b * s.b + p.group * heads * s.h);
}

/* What a kind may read when the row with its own key `own` comes: `count` keys of a list, with their positions. */
__device__ __forceinline__ wn_policy_held walk_kind_held(const walk_args &w, const walk_place &p, int count,
                                                         const int32_t *keys, const int32_t *places, int64_t row) {
  wn_policy_held h;
  memset(&h, 0, sizeof h);
  h.layer = w.rule.layer, h.group = w.first_group + p.group;
  h.count = count, h.row = row, h.budget = p.of.K;
  h.rows = WN_F32;
  h.at = places;
  h.heads = w.s.a.Hkv / w.s.a.slot_groups, h.D = w.s.a.D;
  h.k = walk_kind_rows(w, p, w.k, w.s.a.s_k, keys), h.v = walk_kind_rows(w, p, w.v, w.s.a.s_v, keys);
  return h;
}

/* The score of a key, where it never changes. */
template <policy_stage *STAGE>
__device__ __forceinline__ double walk_kind_score(const walk_args &w, const walk_place &p, int j, int32_t at) {
  const int32_t key = j;
  const wn_policy_held h = walk_kind_held(w, p, 1, &key, &at, at);
  const wn_policy_thread alone = {0, 1};
  double score = 0;
  for (int64_t head = 0; head < h.heads; head++) STAGE(&h, head, 0, alone, &score, nullptr);
  return score;
}

/* Enters key j; called by the thread that owns it. first: of its document. */
template <policy_stage *STAGE>
__device__ __forceinline__ void walk_enter(const walk_args &w, const walk_place &p, int place, int j, int first) {
  const int64_t ld = w.s.ld;
  p.held[place] = j;
  for (int c = 0; c < w.choices; c++) p.F[c * ld + j] = 0;
  for (int i = 0; i < w.notes; i++) p.N[i * ld + j] = 0;
  if (w.rule.by == WN_EVICT_RANDOM) p.score[j] = WN_EVICT_LOT(w.rule, w.first_group + p.group, p.position(j) - first);
  if constexpr (STAGE != nullptr) {
    if (w.kind.constant)
      p.score[j] = walk_kind_score<STAGE>(w, p, j, p.position(j) - first);
    else
      p.places[place] = p.position(j) - first;
  }
}

/* ---- the choice ---- */

/* Minus the pooled votes around key j, summed from the left. Keys are in order of position; those from `own` on do not
 * count. */
__device__ __forceinline__ double walk_pool(const walk_args &w, const walk_place &p, int j, int first, int own) {
  const int reach = (int)w.rule.neighbours, here = p.position(j);
  int from = j;
  while (from > first && here - p.position(from - 1) <= reach) from--;
  double pooled = 0;
  bool any = false;
  for (int n = from; n < own && p.position(n) - here <= reach; n++) {
    if (p.evicted_at[n] != WN_EVICTED_NEVER) continue;
    const double vote = p.score[n];
    pooled = !any ? vote : w.rule.largest ? fmax(pooled, vote) : pooled + vote;
    any = true;
  }
  return w.rule.largest ? -pooled : -(pooled / (double)(2 * reach + 1));
}

__device__ __forceinline__ double walk_score(const walk_args &w, const walk_place &p, int j, int first, int own) {
  if (w.rule.by == WN_EVICT_VALUES) return w.rule.sign * (w.choices > 0 && !w.sums ? p.F : p.N)[j];
  if (w.rule.by == WN_EVICT_RANDOM || w.rule.by == WN_EVICT_KIND) return p.score[j];
  return w.rule.by == WN_EVICT_VOTES ? walk_pool(w, p, j, first, own) : 0.0;
}

/* The list entry of the token to evict when the row with its own key `own` comes; the same for all threads. */
template <policy_stage *STAGE>
__device__ __forceinline__ int walk_choose(const walk_args &w, const walk_place &p, int count, int first, int own) {
  if (w.rule.by == WN_EVICT_VOTES) {
    for (int n = threadIdx.x; n < count; n += WALK_THREADS) {
      const int j = p.held[n];
      double sum = 0;
      for (int i = 0; i < w.notes; i++) sum += p.N[(int64_t)i * w.s.ld + j];
      p.score[j] = sum;
    }
    __syncthreads();
  }
  bool listed = false; /* scores as held, not by key */
  if constexpr (STAGE != nullptr) {
    listed = !w.kind.constant;
    if (listed) {
      const wn_policy_held h = walk_kind_held(w, p, count, p.held, p.places, p.position(own) - first);
      policy_stages<STAGE>(h, w.kind.stages, p.score, p.room);
    }
  }
  evict_choice best = evict_none();
  for (int n = threadIdx.x; n < count; n += WALK_THREADS) {
    const int j = p.held[n], at = p.position(j) - first;
    const bool stays = wn_evict_stays(&w.rule, p.of.sinks, at);
    const bool may_go = !stays && at <= p.position(own) - first - p.of.recent;
    const double score = may_go ? walk_score(w, p, listed ? n : j, first, own) : 0.0;
    best = evict_better(best, evict_of(at, stays, may_go, score, (uint32_t)n));
  }
  return (int)evict_block_best(best).index();
}

/* ---- selections ---- */

/* Adds the row's S to F of a thread's keys. */
__device__ __forceinline__ void walk_select(const walk_args &w, const walk_place &p, const row_place &row, int i,
                                            int count) {
  const stored_args &s = w.s;
  const attention_args &a = s.a;
  for (int c = 0; c < w.choices; c++) {
    const int g = p.choice0 + c, h = g * (a.H / a.G) + a.sel.head, kv = h / (a.H / a.Hkv);
    const bool distant = a.sel.joins && (s.relative.P > 0 || s.maps > 0);
    const float *raw = s.S + matrix_row(s, p.b, a.G, g, i, s.ld);
    const float *by_distance =
        distant && s.relative.P > 0 ? s.relative.row + matrix_row(s, p.b, a.H, h, i, s.relative.ld) : nullptr;
    const double strength = a.sel.strength ? (double)a.sel.strength[g] : 1.0;
    const head_terms terms(s, h);
    double *F = p.F + (int64_t)c * s.ld;
    for (int n = threadIdx.x; n < count; n += WALK_THREADS) {
      const int j = p.held[n];
      if (!may_select(a, p.b, p.group, row.position, row.first, j)) continue;
      double S = w.scale * (double)raw[j];
      if (distant)
        S = (double)stored_logit<true>(s, terms, raw[j], by_distance, stored_distance(s, p.b, kv, row, j),
                                       {p.b, h, a.H / a.Hkv, row.position, j});
      if (!a.sel.relu || S > 0) F[j] += strength * S;
    }
  }
}

/* ---- attention sums ---- */

/* The reference subtracted in a head's exponentials, and 1 / their sum; 0: it sees nothing. */
struct walk_shares {
  float top, part;
};

/* W of a part of the held keys, every `parts`th group of 32: writes their logits, -inf if a key is not seen. */
__device__ __forceinline__ walk_shares walk_weigh(const walk_args &w, const walk_place &p, const row_place &row, int i,
                                                  int h, int part, int parts, int count) {
  const stored_args &s = w.s;
  const attention_args &a = s.a;
  const int kv = h / (a.H / a.Hkv), head = h - p.group * w.heads, lane = threadIdx.x % 32;
  const int64_t at = matrix_row(s, p.b, a.H, h, i, s.ld);
  const double *F = w.choices > 0 ? p.F + (int64_t)(head / (w.heads / w.choices)) * s.ld : nullptr;
  const float *by_distance = s.relative.P > 0 ? s.relative.row + matrix_row(s, p.b, a.H, h, i, s.relative.ld) : nullptr;
  const float z = a.span.on ? span_ratio(a, p.b, h, row.i) : 0.0f;
  const head_terms terms(s, h);
  float top = -INFINITY, total = 0;
  for (int n = part * 32 + lane; n < count; n += parts * 32) {
    const int j = p.held[n], x = stored_distance(s, p.b, kv, row, j);
    float logit = -INFINITY;
    if (stored_sees(s, p.b, kv, row, j, x) && !(a.span.on && !(span_factor(a, z, x) > 0))) {
      logit = stored_logit<true>(s, terms, s.raw[at + j], by_distance, x, {p.b, h, a.H / a.Hkv, row.position, j});
      if (F) logit -= (float)F[j];
    }
    s.W[at + j] = logit;
    top = fmaxf(top, logit);
  }
  top = wn_warp_max(top);
  if (top == -INFINITY) return {top, 0};
  for (int n = part * 32 + lane; n < count; n += parts * 32) {
    const int j = p.held[n];
    const float e = expf(s.W[at + j] - top);
    total += a.span.on ? span_factor(a, z, stored_distance(s, p.b, kv, row, j)) * e : e;
  }
  return {top, wn_warp_sum(total)};
}

/* Combines the sums of a head's parts and of its sinks. */
__device__ __forceinline__ walk_shares walk_join(const stored_args &s, const walk_shares *of, int parts,
                                                 const float *sink) {
  float top = -INFINITY, total = 0;
  for (int n = 0; n < parts; n++) top = fmaxf(top, of[n].top);
  for (int n = 0; n < s.sinks.n; n++) top = fmaxf(top, s.a.scale * sink[n]);
  if (top == -INFINITY) return {0, 0};
  for (int n = 0; n < s.sinks.n; n++) total += expf(s.a.scale * sink[n] - top);
  for (int n = 0; n < parts; n++)
    if (of[n].part > 0) total += of[n].part * expf(of[n].top - top);
  return {top, total > 0 ? 1 / total : 0};
}

/* Updates the notes of a thread's keys after the row. shares [heads * parts], then [heads]: shared memory. */
__device__ __forceinline__ void walk_follow(const walk_args &w, const walk_place &p, const row_place &row, int i,
                                            int count, walk_shares *shares) {
  const stored_args &s = w.s;
  const attention_args &a = s.a;
  const int parts = w.heads < WALK_WARPS ? WALK_WARPS / w.heads : 1, h0 = p.group * w.heads;
  walk_shares *joined = shares + w.heads * parts;
  __syncthreads(); /* wait for the list and F; shares may still be read */
  for (int unit = threadIdx.x / 32; unit < w.heads * parts; unit += WALK_WARPS) {
    const walk_shares mine = walk_weigh(w, p, row, i, h0 + unit / parts, unit % parts, parts, count);
    if (threadIdx.x % 32 == 0) shares[unit] = mine;
  }
  __syncthreads();
  for (int h = threadIdx.x; h < w.heads; h += WALK_THREADS) {
    const float *sink = s.sinks.n > 0 ? s.sinks.row + matrix_row(s, p.b, a.H, h0 + h, i, s.sinks.ld) : nullptr;
    joined[h] = walk_join(s, shares + h * parts, parts, sink);
  }
  __syncthreads();
  for (int n = threadIdx.x; n < count; n += WALK_THREADS) {
    const int j = p.held[n];
    float sum = 0;
    for (int h = 0; h < w.heads; h++) {
      const walk_shares of = joined[h];
      if (!(of.part > 0)) continue;
      float e = expf(s.W[matrix_row(s, p.b, a.H, h0 + h, i, s.ld) + j] - of.top);
      if (a.span.on)
        e *= span_factor(a, span_ratio(a, p.b, h0 + h, row.i),
                         stored_distance(s, p.b, (h0 + h) / (a.H / a.Hkv), row, j));
      sum += e * of.part;
    }
    if (w.ring)
      p.N[(int64_t)((p.position(row.position) - row.first) % w.notes) * s.ld + j] = (double)sum;
    else
      p.N[j] += (double)sum;
  }
}

/* ---- the rows of a chunk ---- */

/* Writes the keys that are left, in order. */
__device__ __forceinline__ void walk_leave(const walk_place &p, int Tk, int32_t *left) {
  WN_SHARED(int, counts, [WALK_THREADS]);
  const int each = (Tk + WALK_THREADS - 1) / WALK_THREADS, from = threadIdx.x * each, to = min(from + each, Tk);
  int count = 0, before = 0;
  for (int j = from; j < to; j++) count += p.evicted_at[j] == WN_EVICTED_NEVER;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (int n = 0; n < (int)threadIdx.x; n++) before += counts[n];
  for (int j = from; j < to; j++)
    if (p.evicted_at[j] == WN_EVICTED_NEVER) left[before++] = j;
}

/* Sets up what is held before the first row. */
template <policy_stage *STAGE> __device__ __forceinline__ int walk_begin(const walk_args &w, const walk_place &p) {
  const attention_args &a = w.s.a;
  const int older = w.piece ? a.offset : 0;
  for (int j = threadIdx.x; j < a.Tk; j += WALK_THREADS) p.evicted_at[j] = WN_EVICTED_NEVER;
  for (int j = threadIdx.x; j < older; j += WALK_THREADS) {
    walk_enter<STAGE>(w, p, j, j, 0);
    for (int c = 0; a.sel.f_in && c < w.choices; c++)
      p.F[(int64_t)c * w.s.ld + j] = (double)a.sel.f_in[((int64_t)p.b * a.G + p.choice0 + c) * a.sel.f_stride + j];
    for (int i = 0; i < w.notes; i++)
      p.N[(int64_t)i * w.s.ld + j] = (double)w.note[p.slots * w.notes + i * a.slot_stride + j];
  }
  return older;
}

/* Grid: head groups of all sequences. A block may take a multiprocessor's registers: without the 1 the compiler keeps
 * to half of them and spills. STAGE: of the policy's score, for WN_EVICT_KIND; else NULL. */
template <policy_stage *STAGE> __global__ void __launch_bounds__(WALK_THREADS, 1) walk_rows(const walk_args w) {
  WN_SHARED_DYNAMIC(walk_shares, shares);
  const attention_args &a = w.s.a;
  const walk_place p(w, (int)blockIdx.x);
  int count = a.first_rows ? walk_begin<STAGE>(w, p) : p.state[0], first = a.first_rows ? 0 : p.state[1];
  __syncthreads();
  for (int i = 0; i < a.rows; i++) {
    const row_place row(w.s, p.b, i);
    const int own = row.position;
    if (row.first != first) first = row.first, count = 0;
    const bool full = count == p.of.K;
    const int place = full ? walk_choose<STAGE>(w, p, count, first, own) : count++;
    if (place % WALK_THREADS == (int)threadIdx.x) {
      if (full) p.evicted_at[p.held[place]] = p.position(own);
      walk_enter<STAGE>(w, p, place, own, first);
    }
    if (!w.piece && row.i == a.Tq - 1) break; /* no row comes after it */
    if (!a.sel.shift) walk_select(w, p, row, i, count);
    if (w.sums && p.of.K - count < w.matters) walk_follow(w, p, row, i, count, shares); /* else they expire before */
    if (a.sel.shift) walk_select(w, p, row, i, count);
  }
  if (!a.last_rows) {
    if (threadIdx.x == 0) p.state[0] = count, p.state[1] = first;
    return;
  }
  if (!w.piece) return;
  for (int n = threadIdx.x; n < count; n += WALK_THREADS)
    for (int i = 0; i < w.notes; i++) {
      const int j = p.held[n];
      w.note[p.slots * w.notes + i * a.slot_stride + j] = (float)p.N[(int64_t)i * w.s.ld + j];
    }
  __syncthreads();
  const int64_t kept = min(p.of.K, a.Tk);
  if (w.left) walk_leave(p, a.Tk, w.left + ((int64_t)p.b * a.slot_groups + p.group) * kept);
}

/* If all scores are equal, the oldest token that does not stay (a sink, a pinned token) is evicted; fewer than K stay.
 * From the row with own key number K on, the others are evicted one after the other. One thread per key. Grid: keys in
 * blocks, head groups of all sequences. */
static __global__ void __launch_bounds__(WALK_THREADS) walk_oldest(const walk_args w) {
  const attention_args &a = w.s.a;
  const walk_place p(w, (int)blockIdx.y);
  const int j = blockIdx.x * WALK_THREADS + threadIdx.x, first = document(a, p.b, j);
  if (j >= a.Tk) return;
  int sinks = first; /* the first key that is not a sink */
  while (sinks < a.Tk && p.position(sinks) - first < p.of.sinks) sinks++;
  int before = min(sinks, j) - first; /* how many earlier keys stay */
  for (int i = sinks; w.rule.pins.count > 0 && i < j; i++) before += wn_pins_have(&w.rule.pins, p.position(i) - first);
  const bool stays = j < sinks || wn_pins_have(&w.rule.pins, p.position(j) - first);
  const int row = p.of.K + j - before; /* the own key of the row that evicts this key */
  const bool goes = !stays && row < a.Tk && document(a, p.b, row) == first;
  p.evicted_at[j] = goes ? p.position(row) : WN_EVICTED_NEVER;
  if (!w.left || goes) return;
  const int64_t kept = min(p.of.K, a.Tk);
  const int others = max(j - before - max(a.Tk - p.of.K, 0), 0); /* earlier ones that are left */
  w.left[((int64_t)p.b * a.slot_groups + p.group) * kept + before + others] = j;
}

/* Makes NAME_policy from NAME_stage (ops/policy/policy.h). */
#define WN_POLICY_KERNELS(NAME)                                                                                        \
  static void NAME##_on_slots(const wn_evict &a, cudaStream_t stream) {                                                \
    WN_LAUNCH(dim3((unsigned)(a.B * a.P)), dim3(WN_CUDA_THREADS), 0, stream, policy_scores<NAME##_stage>, a,           \
              *a.rule.kind);                                                                                           \
  }                                                                                                                    \
  static void NAME##_on_rows(const walk_args &w, unsigned blocks, size_t shared, cudaStream_t stream) {                \
    WN_LAUNCH(dim3(blocks), dim3(WALK_THREADS), shared, stream, walk_rows<NAME##_stage>, w);                           \
  }                                                                                                                    \
  static const policy_kernels NAME##_policy = {NAME##_on_slots, NAME##_on_rows};

} // namespace wn_cuda

#endif
