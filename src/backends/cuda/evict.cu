// Chooses the token that leaves a full cache, and moves the rest (rule in ops/evict.h). One block per sequence and head
// group. Scores are computed in double and in the CPU's order of sums, so the choice is bitwise the CPU's.
//
// Votes need a token's neighbours in the text, which may be anywhere in the cache: each thread searches for those of
// its own tokens, N^2 / threads comparisons of positions.
#include "backends/cuda/evict.cuh"
#include "backends/cuda/policy.cuh"

struct evict_slots {
  wn_evict_slots of[WN_EVICT_ARRAYS];
};

// The votes of slot j, added in the order of their rows.
static __device__ double evict_vote(const wn_evict &a, const float *values, int64_t j) {
  double sum = 0;
  for (int64_t r = 0; r < a.rule.votes; r++) sum += (double)values[r * a.capacity + j];
  return sum;
}

// Minus the pooled votes around slot j, summed from the left.
static __device__ double evict_pool(const wn_evict &a, const int32_t *at, const double *votes, int64_t j) {
  const int reach = (int)a.rule.neighbours;
  double near[2 * WN_EVICT_NEIGHBOURS + 1], pooled = 0;
  uint32_t held = 0;
  for (int64_t i = 0; i < a.N; i++) {
    const int64_t apart = (int64_t)at[i] - at[j] + reach;
    if (at[i] < 0 || apart < 0 || apart > 2 * reach) continue;
    near[apart] = votes[i];
    held |= 1u << apart;
  }
  bool first = true;
  for (int i = 0; i <= 2 * reach; i++) {
    if (!(held >> i & 1)) continue;
    pooled = first ? near[i] : a.rule.largest ? fmax(pooled, near[i]) : pooled + near[i];
    first = false;
  }
  return a.rule.largest ? -pooled : -(pooled / (double)(2 * reach + 1));
}

static __device__ double evict_score(const wn_evict &a, int64_t row, const int32_t *at, const double *votes,
                                     int64_t j) {
  const float *values = static_cast<const float *>(a.values);
  if (a.rule.by == WN_EVICT_VALUES) return a.rule.sign * (double)values[row * a.capacity + j];
  if (a.rule.by == WN_EVICT_RANDOM) return WN_EVICT_LOT(a.rule, a.first_group + row % a.P, at[j]);
  if (a.rule.by == WN_EVICT_KIND) return votes[j]; // policy_scores
  return a.rule.by == WN_EVICT_VOTES ? evict_pool(a, at, votes, j) : 0.0;
}

static __global__ void __launch_bounds__(WN_CUDA_THREADS) evict_kernel(wn_evict a, evict_slots slots, int64_t each) {
  const int t = threadIdx.x;
  const int64_t row = blockIdx.x, last = a.N - 1;
  int32_t *at = a.at + row * a.capacity;
  double *votes = static_cast<double *>(a.room) + row * each;
  if (a.rule.by == WN_EVICT_VOTES) {
    const float *values = static_cast<const float *>(a.values) + row * a.rule.votes * a.capacity;
    for (int64_t j = t; j < a.N; j += WN_CUDA_THREADS) votes[j] = evict_vote(a, values, j);
    __syncthreads();
  }
  evict_choice mine = evict_none();
  for (int64_t j = t; j < a.N && a.rule.by != WN_EVICT_GIVEN; j += WN_CUDA_THREADS) {
    if (at[j] < 0) continue;
    const bool stays = wn_evict_stays(&a.rule, a.rule.sinks, at[j]);
    const bool may_go = !stays && at[j] <= a.row - a.rule.recent;
    const double score = may_go ? evict_score(a, row, at, votes, j) : 0.0;
    mine = evict_better(mine, evict_of(at[j], stays, may_go, score, (uint32_t)j));
  }
  mine = evict_block_best(mine);
  const int64_t slot = a.rule.by == WN_EVICT_GIVEN ? a.index[row] : mine.index();
  for (int i = 0; i < a.count && slot != last; i++) {
    const wn_evict_slots &x = slots.of[i];
    const int64_t words = (int64_t)(x.bytes / sizeof(uint16_t));
    uint16_t *base = static_cast<uint16_t *>(x.data);
    for (int64_t n = t; n < x.rows * words; n += WN_CUDA_THREADS) {
      uint16_t *r = base + ((row * x.rows + n / words) * a.capacity) * words + n % words;
      r[slot * words] = r[last * words];
    }
  }
  if (t == 0) {
    at[slot] = at[last];
    at[last] = (int32_t)a.row;
  }
}

wn_status wn_cuda_evict_forward(const struct wn_exec *exec, const struct wn_evict *a) {
  evict_slots slots = {};
  for (int i = 0; i < a->count; i++) slots.of[i] = a->slots[i];
  if (a->B == 0) return WN_OK;
  const bool kind = a->rule.by == WN_EVICT_KIND;
  if (kind) {
    const wn_cuda::policy_kernels *kernels = wn_cuda::policy_kernels_for(a->rule.kind);
    if (!kernels) return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "evict: backend cuda has no kernels of this policy");
    kernels->scores(*a, wn_cuda_stream(exec));
  }
  const int64_t each = kind ? wn_policy_room(a->rule.kind, a->N, a->D) : a->N;
  WN_LAUNCH((unsigned)(a->B * a->P), WN_CUDA_THREADS, 0, wn_cuda_stream(exec), evict_kernel, *a, slots, each);
  return wn_cuda_launched(exec, "evict");
}
