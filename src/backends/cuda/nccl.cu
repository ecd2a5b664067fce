// Messages between the devices of processes, one process a device (wn_dist_device), by NCCL, which is opened if it is
// installed. NCCL moves bytes alone: gradients are added by the backend's own kernel in the tree that
// src/train/shards.c walks, so that their sum has the same bits whatever the number of processes, which ncclAllReduce
// does not promise.
//
// Messages are ncclSend and ncclRecv in a stream of their own, so that they go on while the work stream computes. A
// group begins behind what the work stream was given before the group's end, and ends with an event. The host asks for
// the event and never blocks, so that it hears of lost processes; once it has passed, later work of the process is
// behind the group.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/steps.cuh"

extern "C" {
#include "dist/device.h"
}

#ifdef WN_EMULATED
#define WN_HAVE_NCCL 1
#elif WN_HAVE_NCCL
#include <nccl.h>
#endif
#if WN_HAVE_NCCL

#define NCCL_CALLS(X)                                                                                                  \
  X(GetVersion)                                                                                                        \
  X(GetUniqueId)                                                                                                       \
  X(CommInitRank)                                                                                                      \
  X(CommGetAsyncError)                                                                                                 \
  X(CommDestroy)                                                                                                       \
  X(Send)                                                                                                              \
  X(Recv)                                                                                                              \
  X(GroupStart)                                                                                                        \
  X(GroupEnd)                                                                                                          \
  X(GetErrorString)

enum { EVENTS = 64, NUMBERS = 1 << 29, LEAST_VERSION = 20900 };

static struct {
#define NCCL_CALL(name) decltype(&nccl##name) name;
  NCCL_CALLS(NCCL_CALL)
} nccl;
static ncclComm_t comm;
static cudaStream_t stream;
static cudaEvent_t events[EVENTS], reached; // reached: by the work stream, when a group was posted
static int group, passed; // the last group's number, modulo NUMBERS; the last that is known to be done
static bool posting;      // `group` still takes messages

static wn_status nccl_fail(wn_context *ctx, const char *what, ncclResult_t result) {
  return wn_fail(ctx, WN_ERR_IO, "%s by NCCL: %s", what, nccl.GetErrorString(result));
}

static wn_status cuda_status(wn_context *ctx, cudaError_t error) {
  return error == cudaSuccess ? WN_OK : wn_cuda_fail(ctx, "messages between GPUs", error);
}

static bool nccl_find() {
#ifdef WN_EMULATED
#define NCCL_FIND(name) nccl.name = &nccl##name;
  NCCL_CALLS(NCCL_FIND)
  return nccl_is_installed();
#else
  static const char file[] = "libnccl.so.2";
  char path[512];
  snprintf(path, sizeof path, "%s/%s", WN_CUDA_LIBRARIES, file);
  void *library = wn_cuda_open_library(file);
  if (!library) library = wn_cuda_open_library(path);
  bool found = library != nullptr;
#define NCCL_FIND(name)                                                                                                \
  if (found) nccl.name = reinterpret_cast<decltype(nccl.name)>(dlsym(library, "nccl" #name));                          \
  found = found && nccl.name;
  NCCL_CALLS(NCCL_FIND)
  return found;
#endif
}

static wn_status nccl_open(wn_context *ctx, char version[WN_DIST_TEXT], char place[WN_DIST_TEXT]) {
  int v = 0, device = 0;
  if (!nccl_find()) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "several GPUs need NCCL, and there is no libnccl.so.2");
  (void)nccl.GetVersion(&v);
  if (v < LEAST_VERSION)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "several GPUs need NCCL 2.9 or later, the installed one's code is %d", v);
  snprintf(version, WN_DIST_TEXT, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetPCIBusId(place, WN_DIST_TEXT, device);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&reached, cudaEventDisableTiming);
  for (int i = 0; i < EVENTS && error == cudaSuccess; i++)
    error = cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming);
  return cuda_status(ctx, error);
}

static wn_status nccl_name(wn_context *ctx, unsigned char id[WN_DIST_ID]) {
  ncclUniqueId made;
  static_assert(sizeof made == WN_DIST_ID, "an id");
  const ncclResult_t result = nccl.GetUniqueId(&made);
  if (result != ncclSuccess) return nccl_fail(ctx, "an id", result);
  memcpy(id, &made, sizeof made);
  return WN_OK;
}

static wn_status nccl_join(wn_context *ctx, const unsigned char id[WN_DIST_ID], int rank, int size) {
  ncclUniqueId made;
  memcpy(&made, id, sizeof made);
  const ncclResult_t result = nccl.CommInitRank(&comm, size, made, rank);
  return result == ncclSuccess ? WN_OK : nccl_fail(ctx, "joining the other GPUs", result);
}

static wn_status nccl_post(wn_context *ctx, void *data, size_t bytes, int other, bool sends, int *request) {
  if (!posting) {
    const ncclResult_t result = nccl.GroupStart();
    if (result != ncclSuccess) return nccl_fail(ctx, "a group", result);
    posting = true;
    group = (group + 1) % NUMBERS;
  }
  const ncclResult_t result = sends ? nccl.Send(data, bytes, ncclInt8, other, comm, stream)
                                    : nccl.Recv(data, bytes, ncclInt8, other, comm, stream);
  *request = group;
  return result == ncclSuccess ? WN_OK : nccl_fail(ctx, sends ? "a message out" : "a message in", result);
}

static wn_status nccl_test(wn_context *ctx, int request, bool *done) {
  if (posting) {
    posting = false;
    cudaError_t error = wn_cuda_step_flush();
    if (error == cudaSuccess) error = cudaEventRecord(reached, wn_cuda_work_stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, reached, 0);
    const ncclResult_t result = nccl.GroupEnd(); // submits the messages
    if (result != ncclSuccess) return nccl_fail(ctx, "messages", result);
    if (error == cudaSuccess) error = cudaEventRecord(events[group % EVENTS], stream);
    WN_TRY(cuda_status(ctx, error));
  }
  *done = (passed - request + NUMBERS) % NUMBERS < NUMBERS / 2; // numbers begin again
  if (*done) return WN_OK;
  const cudaError_t error = cudaEventQuery(events[request % EVENTS]); // perhaps a later group's
  *done = error == cudaSuccess;
  if (*done) passed = request;
  if (error != cudaErrorNotReady) return cuda_status(ctx, error);
  ncclResult_t result = ncclSuccess;
  (void)nccl.CommGetAsyncError(comm, &result);
  return result == ncclSuccess || result == ncclInProgress ? WN_OK : nccl_fail(ctx, "messages", result);
}

static void nccl_end() {
  (void)nccl.CommDestroy(comm);
  comm = nullptr;
}

#else
static wn_status nccl_open(wn_context *ctx, char version[WN_DIST_TEXT], char place[WN_DIST_TEXT]) {
  (void)version, (void)place;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "several GPUs need NCCL, which this build has not (Debian: libnccl-dev; cmake -DWINNOW_NCCL=ON)");
}
#endif

#if WN_HAVE_NCCL
const struct wn_dist_device wn_cuda_nccl = {nccl_open, nccl_name, nccl_join, nccl_post, nccl_test, nccl_end};
#else
const struct wn_dist_device wn_cuda_nccl = {nccl_open, nullptr, nullptr, nullptr, nullptr, nullptr};
#endif
