/* The part of NCCL that src/backends/cuda/nccl.cu uses, in plain C++, between the emulated devices of several processes
 * (emulate_nccl.cc). WINNOW_EMULATED_NCCL=VERSION: the library's version (22809); 0: it is not installed. */
#ifndef TESTS_CUDA_EMULATE_NCCL_H
#define TESTS_CUDA_EMULATE_NCCL_H

#include "cuda/emulate.h"

enum ncclResult_t {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8 = 0 };
typedef struct emulated_comm *ncclComm_t;
struct ncclUniqueId {
  char internal[128];
};

bool nccl_is_installed();
ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *out);
ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
const char *ncclGetErrorString(ncclResult_t result);

#endif
