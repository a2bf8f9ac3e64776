/* C ABI of the host runtime. Calls that return a pointer or an int say NULL or -1 on failure; epsim_runtime_error()
 * then tells what, and epsim_runtime_failed_call()/_status() which call of the vendor's, "" and 0 if none. All three
 * are of the calling thread and live until its next call. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct epsim_domain epsim_domain;
typedef struct epsim_kernel epsim_kernel;

/* Gather num_bytes of every rank at all, ordered by rank. Returns 0. */
typedef int32_t (*epsim_all_gather)(void* context, const void* own, void* all, uint64_t num_bytes);

typedef struct {
  const char* comm_name;
  uint32_t rank, num_ranks, num_jetties;
  uint32_t cpu_timeout_ms;
  uint64_t window_bytes;
} epsim_domain_spec;

typedef struct {
  uint64_t window, host_workspace, host_workspace_on_host, jetty_table, peer_table;
} epsim_addresses;

epsim_domain* epsim_domain_open(const epsim_domain_spec* spec, epsim_all_gather gather, void* context);
void epsim_domain_addresses(const epsim_domain* domain, epsim_addresses* addresses);
int32_t epsim_domain_wait_words(const epsim_domain* domain, uint64_t offset, uint32_t num_words, uint32_t mask,
                                uint32_t value, uint32_t timeout_ms);
/* The domain is gone afterwards, also when -1 tells that a release failed. */
int32_t epsim_domain_close(epsim_domain* domain);

typedef struct {
  const void* data;
  uint64_t num_bytes, align;
} epsim_argument;

/* Kernels stay loaded until the process ends. */
epsim_kernel* epsim_kernel_load(const char* path, const char* name);
int32_t epsim_kernel_launch(const epsim_kernel* kernel, uint32_t num_blocks, void* stream, uint32_t ub_bytes,
                            uint32_t timeout_secs, const epsim_argument* arguments, uint32_t num_arguments);

int32_t epsim_device_limits(int64_t* num_vector_cores, int64_t* ub_bytes);

const char* epsim_runtime_error(void);
const char* epsim_runtime_failed_call(void);
int64_t epsim_runtime_failed_status(void);

#ifdef __cplusplus
}
#endif
