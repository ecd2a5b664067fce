/* Threads of the library's own. */
#ifndef WN_BASE_THREAD_H
#define WN_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* Starts a thread that takes no signals, which are for the program's own threads. False: there can be none more. */
bool wn_thread_start(pthread_t *out, void *(*run)(void *), void *user);

#endif
