/* Modules: shared objects of this build that a process opens only when it needs them. A module lies beside the file
 * that holds this code (the program or the library), or where the installation put it. */
#ifndef WN_BASE_MODULE_H
#define WN_BASE_MODULE_H

#include <stdbool.h>
#include <stddef.h>

/* `file`: for example "winnow-mpi.so". NULL on failure: `why` says in one line where it was expected, or why it cannot
 * be loaded. */
void *wn_module_open(const char *file, char *why, size_t bytes);
/* Whether it is there, opened or not. */
bool wn_module_is_there(const char *file);

#endif
