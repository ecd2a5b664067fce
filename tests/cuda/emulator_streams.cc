// Streams that wait for each other or should, and attention captured as a graph (emulator_streams.h).
#include "cuda/emulate.h"

#include <math.h>

#include "backends/cuda/attention.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/launch.cuh"
#include "cuda/emulator_streams.h"

static __global__ void affine(float *x, float a, float b) {
  if (threadIdx.x == 0) *x = a * *x + b;
}

namespace {

cudaStream_t work, second, third, captured, fresh;
cudaEvent_t events[3];

void prepare() {
  if (work) return;
  (void)wn_cuda_begin(nullptr);
  work = wn_cuda_work_stream;
  for (cudaStream_t *s : {&second, &third, &captured, &fresh})
    (void)cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
  for (cudaEvent_t &e : events) (void)cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  for (const cudaStream_t s : {second, third}) { // from now on they follow the program's stream
    (void)cudaEventRecord(events[0], work);
    (void)cudaStreamWaitEvent(s, events[0], 0);
  }
}

float *the_number() {
  static void *x;
  if (!x) (void)cudaMalloc(&x, sizeof(float));
  return static_cast<float *>(x);
}

void set(cudaStream_t stream, float a, float b) {
  WN_LAUNCH(1, 32, 0, stream, affine, the_number(), a, b);
}

void follow(cudaStream_t stream, cudaStream_t other, int event) {
  (void)cudaEventRecord(events[event], other);
  (void)cudaStreamWaitEvent(stream, events[event], 0);
}

void ask(cudaStream_t first, const stream_waits &waits) {
  (void)cudaMemsetAsync(the_number(), 0, sizeof(float), first);
  set(first, 0, 1);
  if (waits.second) follow(second, first, 0);
  set(second, 2, 0);
  if (waits.middle) follow(third, second, 1);
  set(waits.third ? third : second, 1, 3);
  if (waits.program) follow(first, waits.third ? third : second, 2);
  set(first, 10, 0);
}

float value() { // waits only for the program's stream
  static float *pinned;
  if (!pinned) (void)cudaMallocHost(reinterpret_cast<void **>(&pinned), sizeof *pinned);
  (void)cudaMemcpyAsync(pinned, the_number(), sizeof *pinned, cudaMemcpyDeviceToHost, work);
  (void)cudaStreamSynchronize(work);
  const float x = *pinned;
  (void)cudaStreamSynchronize(second), (void)cudaStreamSynchronize(third);
  return x;
}

} // namespace

float streams_value(stream_waits waits) {
  prepare();
  ask(work, waits);
  return value();
}

float streams_captured(stream_waits waits, int *error) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  prepare();
  (void)cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal);
  ask(captured, waits);
  *error = cudaStreamEndCapture(captured, &graph);
  if (*error) return NAN;
  (void)cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphLaunch(exec, work);
  const float x = value();
  (void)cudaGraphExecDestroy(exec);
  (void)cudaGraphDestroy(graph);
  return x;
}

float streams_events(bool late) {
  static cudaEvent_t never;
  prepare();
  if (!never) (void)cudaEventCreateWithFlags(&never, cudaEventDisableTiming);
  (void)cudaMemsetAsync(the_number(), 0, sizeof(float), work);
  set(work, 0, 1);
  if (late) (void)cudaStreamWaitEvent(second, never, 0);
  (void)cudaEventRecord(events[0], work);
  if (!late) (void)cudaStreamWaitEvent(second, events[0], 0);
  (void)cudaEventRecord(events[0], third); // no work is pending before it
  set(second, 1, 1);
  follow(work, second, 1);
  return value();
}

void streams_fault() {
  prepare();
  set(fresh, 1, 1);
}

// ---- attention ----

static __global__ void fill(uint16_t *x, int n, float by) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    x[i] = __bfloat16_as_ushort(__float2bfloat16_rn(by * sinf((float)(i % 977))));
}

namespace {

enum { T = 520, H = 2, D = 64, ROWS = 256, N = T * H * D, OUTPUTS = 5 };

struct attention_call {
  wn_attention a = wn_attention();
  void *out[OUTPUTS], *scratch;
  size_t bytes[OUTPUTS];

  attention_call() {
    void *in[4];
    a.B = 1, a.Tq = a.Tk = T, a.H = a.Hkv = H, a.D = D, a.scale = 0.05, a.row_type = WN_BF16;
    a.s_q = a.s_k = a.s_v = a.s_y = {N, H * D, D};
    for (int i = 0; i < 4; i++) {
      (void)cudaMalloc(&in[i], N * 2);
      WN_LAUNCH(4, 256, 0, wn_cuda_work_stream, fill, static_cast<uint16_t *>(in[i]), (int)N, 0.5f + 0.1f * (float)i);
    }
    for (int i = 0; i < OUTPUTS; i++) {
      bytes[i] = i < 4 ? N * 2 : T * H * 4;
      (void)cudaMalloc(&out[i], bytes[i]);
    }
    a.q = in[0], a.k = in[1], a.v = in[2], a.dy = in[3];
    a.y = out[0], a.dq = out[1], a.dk = out[2], a.dv = out[3], a.lse = out[4];
    a.sel.on = a.sel.relu = a.sel.protect_first = a.sel.protect_self = a.sel.shift = true;
    a.sel.groups = 1, a.sel.dead_share = 0x1p-24;
    const size_t forward = wn_cuda_attend_scratch(&a, false, ROWS), backward = wn_cuda_attend_scratch(&a, true, ROWS);
    (void)cudaMalloc(&scratch, forward > backward ? forward : backward);
  }
  bool ask(cudaStream_t stream) {
    for (int i = 0; i < OUTPUTS; i++) (void)cudaMemsetAsync(out[i], 0xff, bytes[i], stream);
    return !wn_cuda_attend_forward(&a, scratch, ROWS, stream) && !wn_cuda_attend_backward(&a, scratch, ROWS, stream);
  }
  std::vector<char> results() {
    static char *pinned;
    std::vector<char> all;
    if (!pinned) (void)cudaMallocHost(reinterpret_cast<void **>(&pinned), N * 2);
    for (int i = 0; i < OUTPUTS; i++) {
      (void)cudaMemcpyAsync(pinned, out[i], bytes[i], cudaMemcpyDeviceToHost, wn_cuda_work_stream);
      (void)cudaStreamSynchronize(wn_cuda_work_stream);
      all.insert(all.end(), pinned, pinned + bytes[i]);
    }
    return all;
  }
};

} // namespace

int attention_together() {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStream_t stream;
  if (wn_cuda_begin(nullptr) != WN_OK) return -1;
  wn_emulate_device(9, 3);
  attention_call call;
  (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  wn_cuda_overlap_off(true);
  if (!call.ask(wn_cuda_work_stream)) return -1;
  const std::vector<char> alone = call.results();
  wn_cuda_overlap_off(false);
  if (!call.ask(wn_cuda_work_stream)) return -1;
  const std::vector<char> together = call.results();
  (void)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  const bool asked = call.ask(stream);
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !asked) return -1;
  (void)cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphLaunch(exec, wn_cuda_work_stream);
  const std::vector<char> captured_ones = call.results();
  (void)cudaGraphExecDestroy(exec);
  (void)cudaGraphDestroy(graph);
  int others = 0;
  for (size_t i = 0; i < alone.size(); i++) others += alone[i] != together[i] || alone[i] != captured_ones[i];
  return others;
}
