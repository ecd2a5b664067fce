/* winnow: the version. These three numbers are its only source: CMake, the package files and the shared library's name
 * read them here.
 *
 * What a version promises: while the major number is 0, a program built with 0.MINOR runs with every 0.MINOR.x, which
 * only corrects; 0.MINOR+1 may break it. From 1.0 on the major number plays this part for what is marked stable.
 * docs/api.md has the details. */
#ifndef WINNOW_VERSION_H
#define WINNOW_VERSION_H

#include "winnow/status.h"

/* The headers' version in three numbers. */
#define WN_VERSION_MAJOR 0
#define WN_VERSION_MINOR 2
#define WN_VERSION_PATCH 0
/* The headers' version as one number, for #if: 0.2.0 is 200. */
#define WN_VERSION_NUMBER (WN_VERSION_MAJOR * 10000 + WN_VERSION_MINOR * 100 + WN_VERSION_PATCH)

WN_STABLE_BEGIN

/* The library's version, "0.2.0"; a program may have been built with the headers of another one. Static. */
const char *wn_version(void);
/* The same as one number, like WN_VERSION_NUMBER. */
int wn_version_number(void);

WN_API_END
#endif
