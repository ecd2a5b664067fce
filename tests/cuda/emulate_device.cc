/* The emulated machine has one device, unless the environment says otherwise. CUDA_VISIBLE_DEVICES empty or starting
 * with "-1": none, as with a driver. WINNOW_EMULATED=DRIVER,MAJOR,COUNT: the driver's version (12040; 0: no driver),
 * the compute capability and the number of devices. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/emulate.h"

namespace {

struct machine {
  int driver, major, count;
};

machine machine_now() {
  machine m = {CUDART_VERSION, 8, 1};
  const char *text = getenv("WINNOW_EMULATED"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (text && sscanf(text, "%d,%d,%d", &m.driver, &m.major, &m.count) != 3) abort();
  if (visible && (!*visible || *visible == '-')) m.count = 0;
  return m;
}

int current; /* all threads': a program uses one of them */

} // namespace

cudaError_t cudaDriverGetVersion(int *version) {
  *version = machine_now().driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  const machine m = machine_now();
  *count = m.count;
  if (m.driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  return m.count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
  const machine m = machine_now();
  if (device < 0 || device >= m.count) return cudaErrorInvalidDevice;
  snprintf(out->name, sizeof out->name, "emulated device %d", device);
  out->major = m.major, out->minor = 0, out->totalGlobalMem = (size_t)1 << 35;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine_now().count) return cudaErrorInvalidDevice;
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device) {
  if (device < 0 || device >= machine_now().count) return cudaErrorInvalidDevice;
  snprintf(out, (size_t)bytes, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
