// Steps of decoding as CUDA graphs. A step's launches are the same from token to token, but for some of their
// arguments; asked for one by one they cost the host some microseconds each, and one call a step as a graph.
//
// Within a step (wn_memory's step_begin to step_end) a thread's launches are held back: kernel, grid, block, shared
// memory and arguments go into a list. When the step ends, or when something is to be copied or marked before, the list
// is asked for as a whole:
// - as a graph, where one was made of a list of the same kernels: launches with other arguments than the graph's (a
//   position, a length, a place in a cache) are set in their nodes first, and it is one call for all of the list;
// - else launch by launch, and the list is kept; at the second list like it a graph is made. Lists of which less than
//   one launch in ALIKE has the same arguments are not alike: another session's arrays are others, and each has its own
//   graph.
// So whatever a step does is right as a graph too: what runs is always the list of this step. GRAPHS lists are kept for
// the process; the one that has not been used for longest gives way.
//
// A product of cuBLASLt's launches what it likes: it is captured from a stream of its own, which nothing runs in, and
// is a child graph of one node. Its arguments do not change: a list with another product is another list.
// WINNOW_CUDA_GRAPHS=0 holds nothing back, and so does CUDA_LAUNCH_BLOCKING, which is for finding the launch at fault.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "backends/cuda/steps.cuh"

enum { GRAPHS = 16, LEAST = 8, ALIKE = 32 }; // LEAST launches are worth a graph
enum { ALIGN = 64 };                         // of arguments: a tensor map's

struct step_launch {
  const void *kernel; // NULL: a call
  wn_step_call call;
  dim3 grid, block;
  size_t shared_bytes;
  size_t first, count; // its arguments; a call has one
};
struct step_argument {
  size_t at, bytes; // in units of ALIGN; bytes
};
struct alignas(ALIGN) step_unit {
  char bytes[ALIGN];
};

struct step_list {
  std::vector<step_launch> launches;
  std::vector<step_argument> arguments;
  std::vector<step_unit> data;
  uint64_t hash; // of the kernels

  void clear() {
    launches.clear(), arguments.clear(), data.clear();
    hash = 0;
  }
  void add_argument(const void *from, size_t bytes) {
    const size_t at = data.size();
    data.resize(at + (bytes + ALIGN - 1) / ALIGN); // zeros
    memcpy(&data[at], from, bytes);
    arguments.push_back({at, bytes});
  }
  void add(const step_launch &launch) {
    launches.push_back(launch);
    const uint64_t what = (uint64_t)(uintptr_t)(launch.kernel ? launch.kernel : (const void *)(uintptr_t)launch.call);
    hash = (hash + what) * 0x9E3779B97F4A7C15u;
  }
  const void *argument(size_t i) const { return &data[arguments[i].at]; }
};

// A list that was asked for, and the graph that was made of it, or NULL.
struct step_graph {
  step_list list;
  uint64_t used; // 0: empty
  bool refused;  // no graph could be made of it
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  std::vector<cudaGraphNode_t> nodes;
};

// A thread's step.
struct step {
  step_list list;
  int depth;
  cudaError_t error; // the first
  std::vector<void *> pointers;
};
static thread_local step mine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of all that follows
static step_graph graphs[GRAPHS];
static uint64_t uses;
static cudaStream_t capture_stream;
static bool turned_off;

cudaError_t wn_cuda_steps_prepare() {
  const char *wanted = getenv("WINNOW_CUDA_GRAPHS"), *blocking = getenv("CUDA_LAUNCH_BLOCKING");
  turned_off = (wanted && strcmp(wanted, "0") == 0) || (blocking && strcmp(blocking, "0") != 0);
  return cudaStreamCreateWithFlags(&capture_stream, cudaStreamNonBlocking);
}

void wn_cuda_graphs_off(bool off) {
  turned_off = off;
}

// ---- lists ----

static void **pointers_of(const step_list &list, const step_launch &launch) {
  mine.pointers.clear();
  for (size_t i = 0; i < launch.count; i++)
    mine.pointers.push_back(const_cast<void *>(list.argument(launch.first + i)));
  return mine.pointers.data();
}

static bool same_arguments(const step_list &a, const step_launch &x, const step_list &b, const step_launch &y) {
  if (x.grid.x != y.grid.x || x.grid.y != y.grid.y || x.grid.z != y.grid.z || x.block.x != y.block.x ||
      x.block.y != y.block.y || x.block.z != y.block.z || x.shared_bytes != y.shared_bytes || x.count != y.count)
    return false;
  for (size_t i = 0; i < x.count; i++) {
    const size_t bytes = a.arguments[x.first + i].bytes;
    if (bytes != b.arguments[y.first + i].bytes || memcmp(a.argument(x.first + i), b.argument(y.first + i), bytes) != 0)
      return false;
  }
  return true;
}

// How many launches have other arguments; SIZE_MAX: they are not alike.
static size_t list_distance(const step_list &a, const step_list &b) {
  const size_t n = a.launches.size();
  size_t others = 0;
  if (a.hash != b.hash || n != b.launches.size()) return SIZE_MAX;
  for (size_t i = 0; i < n; i++) {
    const step_launch &x = a.launches[i], &y = b.launches[i];
    if (x.kernel != y.kernel || x.call != y.call) return SIZE_MAX;
    if (same_arguments(a, x, b, y)) continue;
    if (!x.kernel) return SIZE_MAX;
    others++;
  }
  return (n - others) * ALIKE >= n ? others : SIZE_MAX;
}

static cudaError_t list_launch(const step_list &list) {
  cudaError_t error = cudaSuccess;
  for (const step_launch &x : list.launches) {
    const cudaError_t here = x.kernel ? cudaLaunchKernel(x.kernel, x.grid, x.block, pointers_of(list, x),
                                                         x.shared_bytes, wn_cuda_work_stream)
                                      : x.call(list.argument(x.first), wn_cuda_work_stream);
    if (error == cudaSuccess) error = here;
  }
  return error;
}

// ---- graphs, with the lock held ----

static cudaKernelNodeParams node_params(const step_list &list, const step_launch &x) {
  return {const_cast<void *>(x.kernel), x.grid, x.block, (unsigned)x.shared_bytes, pointers_of(list, x), nullptr};
}

static cudaError_t add_call(step_graph &g, const step_launch &x, cudaGraphNode_t *node) {
  const cudaGraphNode_t *before = g.nodes.empty() ? nullptr : &g.nodes.back();
  cudaGraph_t child = nullptr;
  cudaError_t error = cudaStreamBeginCapture(capture_stream, cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) return error;
  const cudaError_t called = x.call(g.list.argument(x.first), capture_stream);
  error = cudaStreamEndCapture(capture_stream, &child);
  if (error == cudaSuccess) error = called;
  if (error == cudaSuccess) error = cudaGraphAddChildGraphNode(node, g.graph, before, before ? 1 : 0, child);
  if (child) (void)cudaGraphDestroy(child); // a child is a copy
  return error;
}

// What is under way in the stream may be this graph.
static void graph_clear(step_graph &g) {
  if (g.exec) {
    (void)cudaStreamSynchronize(wn_cuda_work_stream);
    (void)cudaGraphExecDestroy(g.exec);
  }
  if (g.graph) (void)cudaGraphDestroy(g.graph);
  g.exec = nullptr, g.graph = nullptr;
  g.nodes.clear();
}

// One node after the other.
static cudaError_t graph_make(step_graph &g) {
  cudaError_t error = cudaGraphCreate(&g.graph, 0);
  for (size_t i = 0; error == cudaSuccess && i < g.list.launches.size(); i++) {
    const step_launch &x = g.list.launches[i];
    const cudaGraphNode_t *before = g.nodes.empty() ? nullptr : &g.nodes.back();
    cudaGraphNode_t node;
    if (x.kernel) {
      const cudaKernelNodeParams p = node_params(g.list, x);
      error = cudaGraphAddKernelNode(&node, g.graph, before, before ? 1 : 0, &p);
    } else {
      error = add_call(g, x, &node);
    }
    if (error == cudaSuccess) g.nodes.push_back(node);
  }
  if (error == cudaSuccess) error = cudaGraphInstantiate(&g.exec, g.graph, 0);
  if (error == cudaSuccess) return error;
  (void)cudaGetLastError(); // it goes without a graph
  g.exec = nullptr;
  graph_clear(g);
  g.refused = true;
  return error;
}

// The graph becomes that of `list`, which becomes what the graph's was.
static cudaError_t graph_set(step_graph &g, step_list &list) {
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; g.exec && error == cudaSuccess && i < list.launches.size(); i++) {
    const step_launch &x = list.launches[i];
    if (same_arguments(list, x, g.list, g.list.launches[i])) continue;
    const cudaKernelNodeParams p = node_params(list, x);
    error = cudaGraphExecKernelNodeSetParams(g.exec, g.nodes[i], &p);
  }
  std::swap(g.list, list);
  if (error == cudaSuccess) return error;
  (void)cudaGetLastError();
  graph_clear(g);
  g.refused = true;
  return error;
}

// The graph of lists like this one; where there is none, the place for it, which is empty.
static step_graph *graph_of(const step_list &list) {
  step_graph *best = nullptr, *oldest = graphs;
  size_t least = SIZE_MAX;
  for (step_graph &g : graphs) {
    const size_t distance = g.used ? list_distance(g.list, list) : SIZE_MAX;
    if (distance < least) least = distance, best = &g;
    if (g.used < oldest->used) oldest = &g;
  }
  if (best) return best;
  graph_clear(*oldest);
  oldest->used = 0;
  oldest->refused = false;
  return oldest;
}

static cudaError_t list_play(step_list &list) {
  step_graph *g = graph_of(list);
  const bool known = g->used > 0;
  g->used = ++uses;
  (void)graph_set(*g, list); // the list is g's now
  if (known && !g->exec && !g->refused) (void)graph_make(*g);
  return g->exec ? cudaGraphLaunch(g->exec, wn_cuda_work_stream) : list_launch(g->list);
}

// ---- a thread's step ----

bool wn_cuda_step_is_open() {
  return mine.depth > 0;
}

cudaError_t wn_cuda_step_flush() {
  if (mine.list.launches.empty()) return mine.error;
  cudaError_t error;
  if (mine.list.launches.size() < LEAST) {
    error = list_launch(mine.list);
  } else {
    pthread_mutex_lock(&lock);
    error = list_play(mine.list);
    pthread_mutex_unlock(&lock);
  }
  mine.list.clear();
  const cudaError_t last = cudaGetLastError();
  if (error == cudaSuccess) error = last;
  if (mine.error == cudaSuccess) mine.error = error;
  return mine.error;
}

void wn_cuda_step_call(wn_step_call call, const void *data, size_t bytes) {
  const step_launch launch = {nullptr, call, dim3(), dim3(), 0, mine.list.arguments.size(), 1};
  mine.list.add_argument(data, bytes);
  mine.list.add(launch);
}

void wn_cuda_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                    const wn_launch_argument *arguments, int count) {
  if (mine.depth == 0) {
    void *pointers[WN_LAUNCH_ARGUMENTS];
    for (int i = 0; i < count; i++) pointers[i] = const_cast<void *>(arguments[i].at);
    (void)cudaLaunchKernel(kernel, grid, block, pointers, shared_bytes, stream); // wn_cuda_launched looks
    return;
  }
  const step_launch launch = {kernel, nullptr, grid, block, shared_bytes, mine.list.arguments.size(), (size_t)count};
  for (int i = 0; i < count; i++) mine.list.add_argument(arguments[i].at, arguments[i].bytes);
  mine.list.add(launch);
}

extern "C" {

void wn_cuda_step_begin(wn_context *ctx) {
  (void)ctx;
  if (mine.depth > 0 || !turned_off) mine.depth++;
}

wn_status wn_cuda_step_end(wn_context *ctx) {
  if (mine.depth == 0 || --mine.depth > 0) return WN_OK;
  const cudaError_t error = wn_cuda_step_flush();
  mine.error = cudaSuccess;
  return error == cudaSuccess ? WN_OK : wn_cuda_fail(ctx, "a step", error);
}
}
