// Correct graphs, and wrong calls (emulator_graphs.h).
#include "cuda/emulate.h"

#include "backends/cuda/device.cuh"
#include "cuda/emulator_graphs.h"

static __global__ void affine(float *x, float a, float b) {
  if (threadIdx.x == 0) *x = a * *x + b;
}
static __global__ void other(float *x, float a, float b) {
  if (threadIdx.x == 0) *x = a - *x + b;
}

namespace {

cudaStream_t work, second; // the program's, and one to capture

void prepare() {
  if (!work) (void)cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking);
  if (!second) (void)cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
}

struct arguments {
  float *x;
  float a, b;
  void *pointers[3];
  cudaKernelNodeParams params;
  arguments(float *at, float by, float and_) : x(at), a(by), b(and_), pointers{&x, &a, &b} {
    params = {const_cast<void *>(wn_kernel(affine)), dim3(1), dim3(32), 0, pointers, nullptr};
  }
};

void launch_affine(cudaStream_t stream, float *at, float by, float and_) {
  arguments k(at, by, and_);
  (void)cudaLaunchKernel(k.params.func, k.params.grid, k.params.block, k.params.kernelParams, 0, stream);
}

float value_of(const float *x) {
  static float *pinned;
  if (!pinned) (void)cudaMallocHost(reinterpret_cast<void **>(&pinned), sizeof *pinned);
  (void)cudaMemcpyAsync(pinned, x, sizeof *x, cudaMemcpyDeviceToHost, work);
  (void)cudaStreamSynchronize(work);
  return *pinned;
}

float *array_of(float value) {
  void *x = nullptr;
  (void)cudaMalloc(&x, 64);
  (void)cudaMemsetAsync(x, 0, 64, work);
  launch_affine(work, static_cast<float *>(x), 1, value);
  return static_cast<float *>(x);
}

// A graph: x = 3 x, then x = x + 1.
struct two_nodes {
  cudaGraph_t graph;
  cudaGraphNode_t first, last;
  cudaGraphExec_t exec;
  two_nodes(float *x, bool chained) {
    arguments k(x, 3, 0);
    (void)cudaGraphCreate(&graph, 0);
    (void)cudaGraphAddKernelNode(&first, graph, nullptr, 0, &k.params);
    k.a = 1, k.b = 1; // the node has copies of these
    (void)cudaGraphAddKernelNode(&last, graph, &first, chained ? 1 : 0, &k.params);
    k.a = k.b = 77;
    (void)cudaGraphInstantiate(&exec, graph, 0);
  }
  void destroy() {
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
  }
};

} // namespace

void graph_run(bool chained, struct graph_values *out) {
  prepare();
  float *x = array_of(1), *elsewhere = array_of(9);
  two_nodes two(x, chained);
  out->built = value_of(x);
  (void)cudaGraphLaunch(two.exec, work);
  out->launched = value_of(x);
  arguments k(x, 5, 0);
  (void)cudaGraphExecKernelNodeSetParams(two.exec, two.first, &k.params);
  k.a = 77;
  (void)cudaGraphLaunch(two.exec, work);
  out->changed = value_of(x);
  two.destroy();
  cudaGraph_t child, graph;
  cudaGraphNode_t node;
  cudaGraphExec_t exec;
  (void)cudaStreamBeginCapture(second, cudaStreamCaptureModeThreadLocal);
  launch_affine(second, x, 2, 0);
  (void)cudaMemsetAsync(elsewhere, 0, sizeof *elsewhere, second);
  (void)cudaStreamEndCapture(second, &child);
  (void)cudaGraphCreate(&graph, 0);
  (void)cudaGraphAddChildGraphNode(&node, graph, nullptr, 0, child);
  (void)cudaGraphDestroy(child); // the node keeps its own copy
  (void)cudaGraphInstantiate(&exec, graph, 0);
  out->captured = value_of(x) + value_of(elsewhere) - 9;
  (void)cudaGraphLaunch(exec, work);
  out->child = value_of(x);
  out->zeros = value_of(elsewhere);
  (void)cudaGraphExecDestroy(exec);
  (void)cudaGraphDestroy(graph);
  (void)cudaFree(x);
  (void)cudaFree(elsewhere);
}

static cudaError_t captured_fault(enum graph_fault fault, float *x, cudaGraphExec_t exec) {
  static float pageable[16];
  static cudaEvent_t event;
  void *p = nullptr;
  if (!event) (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  switch (fault) {
  case GRAPH_FAULT_PAGEABLE:
    return cudaMemcpyAsync(x, pageable, sizeof pageable, cudaMemcpyHostToDevice, second);
  case GRAPH_FAULT_SYNCHRONIZE:
    return cudaStreamSynchronize(second);
  case GRAPH_FAULT_EVENT:
    (void)cudaEventRecord(event, second);
    return cudaEventSynchronize(event);
  case GRAPH_FAULT_ALLOCATE:
    return cudaMalloc(&p, 64);
  case GRAPH_FAULT_ALLOCATE_ASYNC:
    return cudaMallocAsync(&p, 64, second);
  case GRAPH_FAULT_FREE:
    return cudaFree(x);
  case GRAPH_FAULT_PINNED:
    return cudaMallocHost(&p, 64);
  case GRAPH_FAULT_LAUNCH:
    return cudaGraphLaunch(exec, second);
  default:
    return cudaStreamBeginCapture(second, cudaStreamCaptureModeThreadLocal);
  }
}

int graph_fault(enum graph_fault fault, bool *invalid) {
  prepare();
  cudaError_t error = cudaSuccess;
  float *x = array_of(1);
  two_nodes two(x, true), another(x, true);
  arguments k(x, 1, 1);
  *invalid = false;
  if (fault <= GRAPH_FAULT_TWICE) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamBeginCapture(second, cudaStreamCaptureModeThreadLocal);
    error = captured_fault(fault, x, two.exec);
    *invalid = cudaStreamEndCapture(second, &graph) == cudaErrorStreamCaptureInvalidated && !graph;
    if (graph) (void)cudaGraphDestroy(graph);
  } else if (fault == GRAPH_FAULT_MODE) {
    error = cudaStreamBeginCapture(second, cudaStreamCaptureModeGlobal);
  } else if (fault == GRAPH_FAULT_END) {
    cudaGraph_t graph;
    error = cudaStreamEndCapture(second, &graph);
  } else if (fault == GRAPH_FAULT_STREAM) {
    error = cudaLaunchKernel(k.params.func, dim3(1), dim3(32), k.pointers, 0, second);
  } else if (fault == GRAPH_FAULT_AFTER_OTHER) {
    cudaGraphNode_t node;
    error = cudaGraphAddKernelNode(&node, two.graph, &another.first, 1, &k.params);
  } else if (fault == GRAPH_FAULT_SET_KERNEL) {
    k.params.func = const_cast<void *>(wn_kernel(other));
    error = cudaGraphExecKernelNodeSetParams(two.exec, two.first, &k.params);
  } else if (fault == GRAPH_FAULT_SET_OTHER) {
    error = cudaGraphExecKernelNodeSetParams(two.exec, another.first, &k.params);
  } else if (fault == GRAPH_FAULT_FREED) {
    (void)cudaFree(x);
    error = cudaGraphLaunch(two.exec, work);
    x = nullptr;
  }
  another.destroy();
  two.destroy();
  if (fault == GRAPH_FAULT_DESTROYED) error = cudaGraphLaunch(two.exec, work);
  if (fault == GRAPH_FAULT_SET_DESTROYED) error = cudaGraphExecKernelNodeSetParams(two.exec, two.first, &k.params);
  if (x) (void)cudaFree(x);
  return (int)error;
}

const char *graph_fault_call(enum graph_fault fault) {
  static const char *const calls[GRAPH_FAULTS] = {
      "cudaMemcpyAsync",
      "cudaStreamSynchronize",
      "cudaEventSynchronize",
      "cudaMalloc",
      "cudaMallocAsync",
      "cudaFree",
      "cudaMallocHost",
      "cudaGraphLaunch",
      "cudaStreamBeginCapture",
      "cudaStreamBeginCapture",
      "cudaStreamEndCapture",
      "another stream",
      "cudaGraphLaunch of a graph that has been destroyed",
      "cudaGraphExecKernelNodeSetParams of a graph that has been destroyed",
      "cudaGraphExecKernelNodeSetParams of another kernel",
      "cudaGraphExecKernelNodeSetParams of a node of another graph",
      "cudaGraphAddKernelNode after a node of another graph",
      "cudaGraphLaunch: a kernel's argument is memory that has been given back"};
  return calls[fault];
}
