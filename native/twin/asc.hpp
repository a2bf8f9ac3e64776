// The kernel API of the twin: what native/kernels may call. A call that is not here does not compile.
#pragma once

#include <twin/asc_pipe.hpp>
#include <twin/asc_scalar.hpp>
#include <twin/asc_simt.hpp>
#include <twin/kernel.hpp>

#define __global__
#define __vector__
#define __aicore__ inline
#define __simt_vf__
#define __simt_callee__ inline
#define __launch_bounds__(num_threads)
