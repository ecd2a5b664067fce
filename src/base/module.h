/* Modules of this build: shared objects of its own that a process opens when it needs them and not before. Each lies
 * beside the file that this code is in (the program or the library), or where the installation has put it. */
#ifndef WN_BASE_MODULE_H
#define WN_BASE_MODULE_H

#include <stdbool.h>
#include <stddef.h>

/* `file`: "winnow-mpi.so". NULL: `why` says in one line where it was expected, or what of it cannot be loaded. */
void *wn_module_open(const char *file, char *why, size_t bytes);
/* Whether it is there, opened or not. */
bool wn_module_is_there(const char *file);

#endif
