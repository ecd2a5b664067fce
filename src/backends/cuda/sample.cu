// Drawing a token on the device, one block, with the CPU's rule and its random numbers (decode/sample.c): min-p, then
// temperature, top-k, top-p. Sums of weights are in double in a fixed order, which is not the CPU's: the two could
// choose differently where a number falls within rounding of a border.
//
// A cut is found bit by bit: the largest key for which what is at least as large reaches the target, 32 passes over the
// logits. Keys are the logits' bits in an order that unsigned numbers have.
#include "backends/cuda/launch.cuh"
#include "backends/cuda/philox.cuh"

extern "C" {
#include "base/rng.h"
}

enum { SAMPLE_THREADS = 512 };

static __device__ __forceinline__ uint32_t sample_key(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// What is kept: keys above `key`, and the first `ties` (by id) of those equal to it.
struct sample_cut {
  uint32_t key;
  int64_t ties;
};
struct sample_state {
  const float *logits;
  int64_t V, first, end; // this thread's run of ids
  double top, temperature;
  sample_cut kept;
  int64_t ties_before; // ids before the run with the key of the cut
};

static __device__ __forceinline__ double sample_weight(const sample_state &s, float x) {
  return exp(((double)x - s.top) / s.temperature);
}
static __device__ __forceinline__ bool sample_is_kept(const sample_state &s, uint32_t key, int64_t *ties) {
  if (key != s.kept.key) return key > s.kept.key;
  return (*ties)++ < s.kept.ties;
}

// How many there are in the runs before this thread's.
static __device__ int64_t sample_before(int64_t mine) {
  WN_SHARED(int64_t, runs, [SAMPLE_THREADS]);
  __syncthreads();
  runs[threadIdx.x] = mine;
  __syncthreads();
  int64_t before = 0;
  for (int i = 0; i < (int)threadIdx.x; i++) before += runs[i];
  return before;
}
static __device__ void sample_set_cut(sample_state &s, sample_cut cut) {
  int64_t equal = 0;
  s.kept = cut;
  for (int64_t v = s.first; v < s.end; v++) equal += sample_key(s.logits[v]) == cut.key;
  s.ties_before = sample_before(equal);
}

// The weight (1 each when counting) of what is kept and has a key of at least `least`.
static __device__ double sample_total(const sample_state &s, uint32_t least, bool counting) {
  int64_t ties = s.ties_before;
  double sum = 0;
  for (int64_t v = s.first; v < s.end; v++) {
    const uint32_t key = sample_key(s.logits[v]);
    if (!sample_is_kept(s, key, &ties) || key < least) continue;
    sum += counting ? 1.0 : sample_weight(s, s.logits[v]);
  }
  return wn_block_sum(sum);
}

// The smallest set of largest logits within what is kept whose weights reach `target`.
static __device__ void sample_narrow(sample_state &s, bool counting, double target) {
  uint32_t key = 0;
  for (int bit = 31; bit >= 0; bit--) {
    const uint32_t higher = key | 1u << bit;
    if (sample_total(s, higher, counting) >= target) key = higher;
  }
  const double above = key == ~0u ? 0 : sample_total(s, key + 1, counting);
  int64_t equal = 0, ties = s.ties_before;
  for (int64_t v = s.first; v < s.end; v++) equal += sample_key(s.logits[v]) == key && sample_is_kept(s, key, &ties);
  const int64_t all = wn_block_sum(equal);
  const float value = __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
  const double each = counting ? 1.0 : sample_weight(s, value);
  double wanted = ceil((target - above) / each);
  if (!(wanted >= 1)) wanted = 1;
  if (all > 0) sample_set_cut(s, {key, wanted < (double)all ? (int64_t)wanted : all});
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_kernel(const float *logits, int64_t V, double temperature, int64_t top_k, double top_p, float min_p_log,
                  bool min_p, uint64_t seed, uint64_t step, int32_t *token, int32_t *bad) {
  WN_SHARED(float, tops, [SAMPLE_THREADS]);
  WN_SHARED(int64_t, ids, [SAMPLE_THREADS]);
  WN_SHARED(double, runs, [SAMPLE_THREADS]);
  WN_SHARED(int, chosen, [2]);
  const int t = threadIdx.x;
  const int64_t each = (V + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
  sample_state s;
  s.logits = logits, s.V = V, s.first = min(V, each * t), s.end = min(V, each * (t + 1)), s.temperature = temperature;
  float top = -INFINITY;
  int64_t best = V;
  int wrong = 0;
  for (int64_t v = s.first; v < s.end; v++) {
    wrong |= !(logits[v] < INFINITY);
    if (logits[v] > top) top = logits[v], best = v;
  }
  tops[t] = top, ids[t] = best;
  wrong = __syncthreads_or(wrong);
  for (int i = 0; i < SAMPLE_THREADS; i++) // runs of ids are in order: ties go to the lowest
    if (i == 0 || tops[i] > top) top = tops[i], best = ids[i];
  if (t == 0) *bad = wrong ? 1 : top == -INFINITY ? 2 : 0, *token = best < V ? (int32_t)best : -1;
  if (wrong || top == -INFINITY || temperature == 0) return;
  s.top = top;
  s.kept = {min_p ? sample_key(top + min_p_log) : 0u, V};
  s.ties_before = 0;
  if (top_k > 0 && top_k < V) sample_narrow(s, true, (double)top_k);
  if (top_p < 1) sample_narrow(s, false, top_p * sample_total(s, 0, false));
  // Along the ids, as if one after the other: first whose run, then which of the run.
  int64_t ties = s.ties_before;
  double run = 0;
  for (int64_t v = s.first; v < s.end; v++)
    if (sample_is_kept(s, sample_key(logits[v]), &ties)) run += sample_weight(s, logits[v]);
  __syncthreads();
  runs[t] = run;
  __syncthreads();
  if (t == 0) {
    double total = 0;
    for (int i = 0; i < SAMPLE_THREADS; i++) total += runs[i];
    double left = total * wn_cuda_uniform(seed, WN_STREAM_SAMPLE, step, 0);
    chosen[0] = -1;
    for (int i = 0; i < SAMPLE_THREADS; i++) {
      if (runs[i] <= 0) continue;
      chosen[0] = i; // should rounding leave a rest, the last one
      if (left - runs[i] < 0) break;
      left -= runs[i];
    }
    runs[0] = left;
  }
  __syncthreads();
  if (t != chosen[0]) return;
  double left = runs[0];
  ties = s.ties_before;
  for (int64_t v = s.first; v < s.end; v++) {
    if (!sample_is_kept(s, sample_key(logits[v]), &ties)) continue;
    const double weight = sample_weight(s, logits[v]);
    if (weight <= 0) continue;
    *token = (int32_t)v;
    left -= weight;
    if (left < 0) break;
  }
}

wn_status wn_cuda_sample(const struct wn_exec *exec, const struct wn_cuda_sample *a) {
  WN_LAUNCH(1, SAMPLE_THREADS, 0, wn_cuda_stream(exec), sample_kernel, a->logits, a->V, a->temperature, a->top_k,
            a->top_p, a->min_p > 0 ? (float)log(a->min_p) : 0.0f, a->min_p > 0, a->seed, a->step, a->token, a->bad);
  return wn_cuda_launched(exec, "sample");
}
