/* NCCL between processes on one machine. Every two have a socket; its name is made of the id. A group is a task of its
 * stream, so its messages move when the queue comes to it (emulate_queue.cc), all of them at the same time, and it ends
 * with the last of them: a process that posts groups in another order than its peers waits for ever, as on devices. */
#include "cuda/emulate_nccl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cuda/emulate_queue.h"

struct emulated_comm {
  int rank, size;
  std::vector<int> sockets; /* [size]; -1: itself */
  ncclResult_t error;
};

namespace {

struct message {
  char *data;
  size_t bytes, done;
  int peer;
  bool sends;
};

emulated_comm *the_comm;
std::vector<message> group;
cudaStream_t group_stream;
bool in_group;

int version_now() {
  const char *text = getenv("WINNOW_EMULATED_NCCL");
  return text ? atoi(text) : 22809;
}

socklen_t address_of(const ncclUniqueId &id, int rank, sockaddr_un *out) {
  *out = {};
  out->sun_family = AF_UNIX;
  const int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "winnow-nccl-%.40s-%d", id.internal, rank);
  return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)n); /* in no folder */
}

bool whole(int fd, int *value, bool sends) {
  return (sends ? send(fd, value, sizeof *value, MSG_NOSIGNAL) : recv(fd, value, sizeof *value, MSG_WAITALL)) ==
         sizeof *value;
}

/* The peer's next message in this direction: messages of a pair keep their order. */
bool is_next(const std::vector<message> &all, size_t i) {
  for (size_t k = 0; k < i; k++)
    if (all[k].peer == all[i].peer && all[k].sends == all[i].sends && all[k].done < all[k].bytes) return false;
  return all[i].done < all[i].bytes;
}

/* Moves what can be moved without waiting. False: a peer is gone. */
bool message_move(message &m, int fd) {
  const size_t left = m.bytes - m.done;
  const ssize_t n = m.sends ? send(fd, m.data + m.done, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : recv(fd, m.data + m.done, left, MSG_DONTWAIT);
  if (n > 0) m.done += (size_t)n;
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void group_run(emulated_comm *comm, std::vector<message> all) {
  for (const message &m : all) emulate::memory_open_array(m.data, m.bytes, true);
  for (bool waits = true; waits && comm->error == ncclSuccess;) {
    std::vector<pollfd> polls;
    std::vector<size_t> which;
    for (size_t i = 0; i < all.size(); i++)
      if (is_next(all, i)) {
        polls.push_back({comm->sockets[(size_t)all[i].peer], (short)(all[i].sends ? POLLOUT : POLLIN), 0});
        which.push_back(i);
      }
    waits = !polls.empty();
    if (waits && poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) comm->error = ncclSystemError;
    for (size_t i = 0; i < polls.size(); i++)
      if (polls[i].revents && !message_move(all[which[i]], polls[i].fd)) comm->error = ncclRemoteError;
  }
  for (const message &m : all) emulate::memory_open_array(m.data, m.bytes, false);
}

ncclResult_t group_add(void *data, size_t bytes, ncclDataType_t type, int peer, emulated_comm *comm,
                       cudaStream_t stream, bool sends) {
  if (!comm || comm != the_comm || type != ncclInt8 || peer < 0 || peer >= comm->size || peer == comm->rank)
    return ncclInvalidArgument;
  if (bytes > 0 && !emulate::is_array(data, bytes)) return ncclInvalidArgument;
  /* Each alone would wait for its peer's in the stream. */
  if (!in_group || (!group.empty() && stream != group_stream)) return ncclInvalidUsage;
  group_stream = stream;
  group.push_back({static_cast<char *>(data), bytes, 0, peer, sends});
  return ncclSuccess;
}

} // namespace

bool nccl_is_installed() {
  return version_now() > 0;
}

ncclResult_t ncclGetVersion(int *version) {
  *version = version_now();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
  unsigned char bytes[16];
  *out = {};
  if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return ncclSystemError;
  for (size_t i = 0; i < sizeof bytes; i++) snprintf(out->internal + 2 * i, 3, "%02x", bytes[i]);
  return ncclSuccess;
}

/* Each listens, connects to those before it and accepts those behind it. */
ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank) {
  sockaddr_un at;
  if (the_comm || rank < 0 || rank >= size) return ncclInvalidUsage;
  std::unique_ptr<emulated_comm> comm(new emulated_comm{rank, size, std::vector<int>((size_t)size, -1), ncclSuccess});
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t bytes = address_of(id, rank, &at);
  if (bind(listener, reinterpret_cast<sockaddr *>(&at), bytes) || listen(listener, size)) return ncclSystemError;
  for (int r = 0; r < rank; r++) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int me = rank;
    bytes = address_of(id, r, &at);
    while (connect(fd, reinterpret_cast<sockaddr *>(&at), bytes)) {
      if (errno != ECONNREFUSED && errno != EAGAIN) return ncclSystemError;
      usleep(1000); /* it does not listen yet */
    }
    if (!whole(fd, &me, true)) return ncclSystemError;
    comm->sockets[(size_t)r] = fd;
  }
  for (int n = rank + 1; n < size; n++) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int other;
    if (fd < 0 || !whole(fd, &other, false) || other <= rank || other >= size) return ncclSystemError;
    comm->sockets[(size_t)other] = fd;
  }
  close(listener);
  *out = the_comm = comm.release();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out) {
  *out = comm->error;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  for (const int fd : comm->sockets)
    if (fd >= 0) close(fd);
  the_comm = nullptr;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return group_add(const_cast<void *>(data), count, type, peer, comm, stream, true);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return group_add(data, count, type, peer, comm, stream, false);
}

ncclResult_t ncclGroupStart() {
  if (in_group) return ncclInvalidUsage; /* real groups nest; these have no need to */
  in_group = true;
  group.clear();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!in_group) return ncclInvalidUsage;
  in_group = false;
  if (group.empty()) return ncclSuccess;
  if (!emulate::stream_check(emulate::site::here(), group_stream)) return ncclInvalidUsage;
  emulated_comm *comm = the_comm;
  const std::vector<message> all = group;
  emulate::stream_add(group_stream, [comm, all] { group_run(comm, all); });
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError   ? "a remote process exited or there was a network error"
         : result == ncclSystemError ? "unhandled system error"
                                     : "invalid argument or usage";
}
