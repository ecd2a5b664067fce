/* The transport over MPI. It is a module of its own, so that a library or program that is started alone does not load
 * MPI. Messages are MPI_Isend and MPI_Irecv of bytes. MPI makes progress only inside its calls, such as MPI_Test in
 * mpi_test. */
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

#include "dist/transport.h"

#define EXPORT __attribute__((visibility("default")))

static MPI_Comm ours;
static MPI_Request *requests; /* [room] MPI_REQUEST_NULL: free */
static int room, next;
static int begun; /* we initialised MPI, so we finalise it */

static int mpi_begin(int *rank, int *size) {
  int given, there = 0;
  if (MPI_Initialized(&there) || (!there && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given))) return -1;
  begun = !there;
  /* A communicator of our own, so that messages of the surrounding program do not mix with ours. */
  return MPI_Comm_dup(MPI_COMM_WORLD, &ours) || MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN) ||
                 MPI_Comm_rank(ours, rank) || MPI_Comm_size(ours, size)
             ? -1
             : 0;
}

/* Finds a free place; the list grows to the most messages that are ever in flight. */
static int mpi_place(void) {
  for (int i = 0; i < room; i++) {
    const int at = (next + i) % room;
    if (requests[at] == MPI_REQUEST_NULL) return next = at;
  }
  const int larger = room ? 2 * room : 256;
  MPI_Request *grown = realloc(requests, (size_t)larger * sizeof *grown);
  if (!grown) return -1;
  requests = grown;
  for (int i = room; i < larger; i++) requests[i] = MPI_REQUEST_NULL;
  next = room;
  room = larger;
  return next;
}

static int mpi_send(const void *data, size_t bytes, int to) {
  const int at = bytes > INT_MAX ? -1 : mpi_place();
  return at < 0 || MPI_Isend(data, (int)bytes, MPI_BYTE, to, 0, ours, &requests[at]) ? -1 : at;
}

static int mpi_receive(void *data, size_t bytes, int from) {
  const int at = bytes > INT_MAX ? -1 : mpi_place();
  return at < 0 || MPI_Irecv(data, (int)bytes, MPI_BYTE, from, 0, ours, &requests[at]) ? -1 : at;
}

/* MPI sets a request that is done to MPI_REQUEST_NULL. */
static int mpi_test(int request) {
  int done = 0;
  return MPI_Test(&requests[request], &done, MPI_STATUS_IGNORE) ? -1 : done != 0;
}

static void mpi_end(void) {
  MPI_Comm_free(&ours);
  if (begun) MPI_Finalize();
  free(requests);
  requests = NULL;
  room = next = 0;
}

EXPORT const struct wn_dist_transport *wn_dist_module(void);
EXPORT const struct wn_dist_transport *wn_dist_module(void) {
  static const struct wn_dist_transport transport = {.version = WN_DIST_TRANSPORT,
                                                     .name = "mpi",
                                                     .begin = mpi_begin,
                                                     .send = mpi_send,
                                                     .receive = mpi_receive,
                                                     .test = mpi_test,
                                                     .end = mpi_end};
  return &transport;
}
