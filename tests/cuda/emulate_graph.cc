/* Launches by address, stream capture, and graphs. What is captured or added to a graph runs when the graph is
 * launched, not earlier, with the arguments given then. Nodes run in any order that their dependencies allow (by the
 * seed), so that a missing dependency shows. A stream that waits for an event of a captured stream is captured too, and
 * must be joined. What graphs cannot contain, and destroyed or freed objects, are errors that name the call. */
#include <map>
#include <memory>
#include <set>
#include <string>

#include "cuda/emulate_queue.h"

struct emulated_node {
  cudaGraph_t graph;
  std::vector<cudaGraphNode_t> after;
  bool is_kernel;
  emulate::kernel_call_copy kernel; /* for a kernel node */
  std::vector<emulated_node> child; /* for a child graph, in a valid order */
  std::function<void()> run;        /* for any other node */
};
struct emulated_graph {
  std::vector<std::unique_ptr<emulated_node>> nodes;
};
struct emulated_exec {
  cudaGraph_t graph;
  std::vector<emulated_node> nodes;
  std::vector<cudaGraphNode_t> of; /* the graph's nodes */
};

namespace emulate {

static std::set<cudaGraph_t> graphs;
static std::set<cudaGraphExec_t> execs;
static const void *captured;                                      /* the stream on which the capture began */
static std::map<const void *, std::vector<cudaGraphNode_t>> last; /* captured streams' next dependencies */
static cudaGraph_t capture;
static uint64_t captures;
static bool capture_failed;

bool capture_is_on(const void *stream) {
  return captured && last.count(stream);
}
uint64_t capture_now() {
  return captured ? captures : 0;
}

bool capture_refuses(const void *stream, const char *call) {
  if (!captured || (stream && !capture_is_on(stream))) return false;
  fail(site::here(), (std::string(call) + " while a stream is captured").c_str());
  capture_failed = true;
  return true;
}

static cudaGraphNode_t node_add(cudaGraph_t graph, const cudaGraphNode_t *after, size_t count) {
  graph->nodes.emplace_back(new emulated_node());
  cudaGraphNode_t node = graph->nodes.back().get();
  node->graph = graph;
  node->after.assign(after, after + count);
  return node;
}

/* In a captured stream each node depends on the one before. */
static cudaGraphNode_t captured_node(const void *stream) {
  std::vector<cudaGraphNode_t> &before = last[stream];
  const cudaGraphNode_t node = node_add(capture, before.data(), before.size());
  before = {node};
  return node;
}
void capture_add(const void *stream, const std::function<void()> &run) {
  captured_node(stream)->run = run;
}
std::vector<cudaGraphNode_t> capture_place(const void *stream) {
  return last[stream];
}
void capture_follow(const void *stream, const std::vector<cudaGraphNode_t> &nodes) {
  std::vector<cudaGraphNode_t> &before = last[stream];
  before.insert(before.end(), nodes.begin(), nodes.end());
}
/* Whether the stream on which the capture began waits for all of it. */
static bool capture_is_joined() {
  std::set<cudaGraphNode_t> seen;
  std::vector<cudaGraphNode_t> left = last[captured];
  while (!left.empty()) {
    const cudaGraphNode_t node = left.back();
    left.pop_back();
    if (seen.insert(node).second) left.insert(left.end(), node->after.begin(), node->after.end());
  }
  return seen.size() == capture->nodes.size();
}

/* An order that respects the dependencies. */
static std::vector<cudaGraphNode_t> order_of(cudaGraph_t graph) {
  std::vector<cudaGraphNode_t> order, ready;
  std::set<cudaGraphNode_t> there;
  while (order.size() < graph->nodes.size()) {
    ready.clear();
    for (const auto &node : graph->nodes) {
      bool may = !there.count(node.get());
      for (const cudaGraphNode_t before : node->after) may = may && there.count(before);
      if (may) ready.push_back(node.get());
    }
    order.push_back(ready[some_random() % ready.size()]);
    there.insert(order.back());
  }
  return order;
}

static void node_run(emulated_node &node) {
  if (node.is_kernel)
    node.kernel.run();
  else if (node.run)
    node.run();
  for (emulated_node &of : node.child) node_run(of);
}
static bool node_is_stale(const emulated_node &node) {
  bool stale = node.is_kernel && node.kernel.is_stale();
  for (const emulated_node &of : node.child) stale = stale || node_is_stale(of);
  return stale;
}

static cudaError_t refuse(const char *what) {
  fail(site::here(), what);
  return cudaErrorInvalidValue;
}
static bool graph_has(cudaGraph_t graph, const cudaGraphNode_t *nodes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    bool found = false;
    for (const auto &node : graph->nodes) found = found || node.get() == nodes[i];
    if (!found) return false;
  }
  return true;
}

} // namespace emulate

using namespace emulate;

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  if (!stream_check(site::here(), stream)) return cudaErrorInvalidValue;
  kernel_call_copy copy;
  if (!copy.take(kernel, grid, block, shared_bytes, arguments)) return refuse("cudaLaunchKernel of what is no kernel");
  if (capture_is_on(stream)) {
    const cudaGraphNode_t node = captured_node(stream);
    node->is_kernel = true;
    node->kernel = copy;
    return cudaSuccess;
  }
  calls.kernels++;
  stream_add(stream, [copy]() mutable { copy.run(); });
  return cudaSuccess; /* an error of the launch becomes the last error after it has run */
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (capture_refuses(stream, "cudaStreamBeginCapture")) return cudaErrorStreamCaptureUnsupported;
  if (captured || !stream) return refuse("cudaStreamBeginCapture of a second stream, or of the default one");
  if (mode != cudaStreamCaptureModeThreadLocal)
    return refuse("cudaStreamBeginCapture in a mode that other threads' calls break, or that refuses nothing");
  captured = stream, capture_failed = false, captures++;
  last.clear(), last[stream];
  return cudaGraphCreate(&capture, 0);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  if (!captured || stream != captured) return refuse("cudaStreamEndCapture of a stream that is not captured");
  const bool joined = capture_is_joined();
  captured = nullptr;
  *out = capture;
  if (!capture_failed && joined) return cudaSuccess;
  (void)cudaGraphDestroy(capture);
  *out = nullptr;
  if (capture_failed) return cudaErrorStreamCaptureInvalidated;
  fail(site::here(), "cudaStreamEndCapture before the stream waits for another that is captured with it");
  return cudaErrorStreamCaptureUnjoined;
}

cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned) {
  allocations++;
  *out = new emulated_graph();
  graphs.insert(*out);
  return cudaSuccess;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count,
                                   const cudaKernelNodeParams *p) {
  if (!graphs.count(graph)) return refuse("cudaGraphAddKernelNode to a graph that has been destroyed");
  if (!graph_has(graph, after, count)) return refuse("cudaGraphAddKernelNode after a node of another graph");
  const cudaGraphNode_t node = node_add(graph, after, count);
  node->is_kernel = true;
  *out = node;
  if (!node->kernel.take(p->func, p->grid, p->block, p->sharedMemBytes, p->kernelParams))
    return refuse("cudaGraphAddKernelNode of what is no kernel");
  return cudaSuccess;
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *after,
                                       size_t count, cudaGraph_t child) {
  if (!graphs.count(graph) || !graphs.count(child))
    return refuse("cudaGraphAddChildGraphNode of a graph that has been destroyed");
  if (!graph_has(graph, after, count)) return refuse("cudaGraphAddChildGraphNode after a node of another graph");
  const cudaGraphNode_t node = node_add(graph, after, count);
  for (const cudaGraphNode_t of : order_of(child)) node->child.push_back(*of);
  *out = node;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  if (!graphs.count(graph)) return refuse("cudaGraphInstantiate of a graph that has been destroyed");
  allocations++;
  *out = new emulated_exec{graph, {}, {}};
  for (const cudaGraphNode_t node : order_of(graph)) (*out)->nodes.push_back(*node), (*out)->of.push_back(node);
  execs.insert(*out);
  return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams *p) {
  if (!execs.count(exec) || !graphs.count(exec->graph))
    return refuse("cudaGraphExecKernelNodeSetParams of a graph that has been destroyed");
  for (size_t i = 0; i < exec->of.size(); i++) {
    if (exec->of[i] != node) continue;
    kernel_call_copy &k = exec->nodes[i].kernel;
    if (!exec->nodes[i].is_kernel || k.kernel != p->func)
      return refuse("cudaGraphExecKernelNodeSetParams of another kernel than the node's");
    calls.nodes++;
    return k.take(p->func, p->grid, p->block, p->sharedMemBytes, p->kernelParams) ? cudaSuccess : cudaErrorInvalidValue;
  }
  return refuse("cudaGraphExecKernelNodeSetParams of a node of another graph");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (!stream_check(site::here(), stream)) return cudaErrorInvalidValue;
  if (capture_refuses(stream, "cudaGraphLaunch")) return cudaErrorStreamCaptureUnsupported;
  if (!execs.count(exec)) return refuse("cudaGraphLaunch of a graph that has been destroyed");
  for (const emulated_node &node : exec->nodes)
    if (node_is_stale(node)) return refuse("cudaGraphLaunch: a kernel's argument is memory that has been given back");
  calls.graphs++;
  const auto nodes = std::make_shared<std::vector<emulated_node>>(exec->nodes); /* a copy of the current nodes */
  stream_add(stream, [nodes] {
    for (emulated_node &node : *nodes) node_run(node);
  });
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (!execs.erase(exec)) return refuse("cudaGraphExecDestroy of a graph that has been destroyed");
  streams_finish();
  allocations++;
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graphs.erase(graph)) return refuse("cudaGraphDestroy of a graph that has been destroyed");
  allocations++;
  delete graph;
  return cudaSuccess;
}
