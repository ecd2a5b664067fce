// Decoding steps as CUDA graphs. The launches of a step are the same for each token, except for some arguments.
// Submitted one by one, each costs the host some microseconds; as a graph, a step costs one call.
//
// Within a step (from wn_memory's step_begin to step_end) a thread's launches are held back: kernel, grid, block,
// shared memory and arguments go into a list. When the step ends, or earlier if something is to be copied or marked,
// the list is submitted as a whole:
// - as a graph, if there is one for a list of the same kernels. Launches whose arguments changed (a position, a length,
//   a place in a cache) are first updated in their nodes; then one call submits the whole list;
// - else launch by launch, and the list is kept; a graph is made at the second list like it. Two lists in which fewer
//   than one launch in ALIKE has the same arguments are not alike: another session has other arrays, and gets its own
//   graph.
//
// So a graph always does what the step's own list says. GRAPHS lists are kept per process; the least recently used one
// is replaced.
//
// A cuBLASLt product launches kernels that we do not choose: it is captured from a separate stream, in which nothing
// runs, and becomes a child graph in one node. Its arguments never change: a list with another product is another list.
// WINNOW_CUDA_GRAPHS=0 turns holding back off, and so does CUDA_LAUNCH_BLOCKING, which is for finding a faulty launch.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "backends/cuda/steps.cuh"

enum { GRAPHS = 16, LEAST = 8, ALIKE = 32 }; // LEAST: fewer launches are not worth a graph
enum { ALIGN = 64 };                         // alignment of arguments: that of a tensor map

struct step_launch {
  const void *kernel; // NULL: a call, not a kernel
  wn_step_call call;
  dim3 grid, block;
  size_t shared_bytes;
  size_t first, count; // range of its arguments; a call has one
};
struct step_argument {
  size_t at, bytes; // at: in units of ALIGN
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
    data.resize(at + (bytes + ALIGN - 1) / ALIGN); // zero-filled
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

// A submitted list and its graph, or NULL.
struct step_graph {
  step_list list;
  uint64_t used; // 0: empty slot
  bool refused;  // no graph can be made of it
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  std::vector<cudaGraphNode_t> nodes;
};

// The step of a thread.
struct step {
  step_list list;
  int depth;
  cudaError_t error; // the first error
  std::vector<void *> pointers;
};
static thread_local step mine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards all that follows
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

// How many launches have different arguments; SIZE_MAX: the lists are not alike.
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

// ---- graphs; the lock is held ----

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
  if (child) (void)cudaGraphDestroy(child); // the node has its own copy
  return error;
}

// The graph may still be running in the stream.
static void graph_clear(step_graph &g) {
  if (g.exec) {
    (void)cudaStreamSynchronize(wn_cuda_work_stream);
    (void)cudaGraphExecDestroy(g.exec);
  }
  if (g.graph) (void)cudaGraphDestroy(g.graph);
  g.exec = nullptr, g.graph = nullptr;
  g.nodes.clear();
}

// Nodes run one after the other.
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
  (void)cudaGetLastError(); // clears the error: there is just no graph
  g.exec = nullptr;
  graph_clear(g);
  g.refused = true;
  return error;
}

// Updates the graph to `list` and swaps the two lists.
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

// The graph for lists like this one; if there is none, an empty slot for it.
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
  (void)graph_set(*g, list); // g now owns the list
  if (known && !g->exec && !g->refused) (void)graph_make(*g);
  return g->exec ? cudaGraphLaunch(g->exec, wn_cuda_work_stream) : list_launch(g->list);
}

// ---- the step of a thread ----

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
    (void)cudaLaunchKernel(kernel, grid, block, pointers, shared_bytes, stream); // wn_cuda_launched checks for errors
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
