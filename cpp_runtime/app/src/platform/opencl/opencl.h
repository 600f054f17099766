// What is used of OpenCL 1.2, by its specification (The Khronos Group, revision 19): types,
// constants and functions under their own names. No header of a driver is needed to build this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/driver_library.h"

namespace edgepack::opencl {

using cl_int = std::int32_t;
using cl_uint = std::uint32_t;
using cl_ulong = std::uint64_t;
using cl_bitfield = std::uint64_t;
using cl_platform_id = struct OpaquePlatform*;
using cl_device_id = struct OpaqueDevice*;
using cl_context = struct OpaqueClContext*;
using cl_command_queue = struct OpaqueQueue*;
using cl_mem = struct OpaqueMemory*;
using cl_program = struct OpaqueProgram*;
using cl_kernel = struct OpaqueKernel*;
using cl_event = struct OpaqueEvent*;

constexpr cl_int kSuccess = 0;
constexpr cl_int kMemObjectAllocationFailure = -4;
constexpr cl_int kOutOfResources = -5;
constexpr cl_int kOutOfHostMemory = -6;
constexpr cl_bitfield kDeviceTypeAll = 0xFFFFFFFF;
constexpr cl_uint kDeviceType = 0x1000;
constexpr cl_bitfield kDeviceTypeCpu = 1U << 1U;
constexpr cl_uint kDeviceMaxWorkGroupSize = 0x1004;
constexpr cl_uint kDeviceMaxMemAllocSize = 0x1010;
constexpr cl_uint kDeviceGlobalMemSize = 0x101F;
constexpr cl_uint kDeviceLocalMemSize = 0x1023;
constexpr cl_uint kDeviceName = 0x102B;
constexpr cl_uint kDriverVersion = 0x102D;
constexpr cl_uint kDeviceHostUnifiedMemory = 0x1035;
constexpr cl_uint kDeviceVersion = 0x102F;
constexpr cl_bitfield kDeviceTypeGpu = 1U << 2U;
constexpr cl_bitfield kMemReadWrite = 1;
constexpr cl_bitfield kMemReadOnly = 1U << 2U;
constexpr cl_bitfield kMemAllocHostPtr = 1U << 4U;
constexpr cl_bitfield kMapReadWrite = 3;
constexpr cl_bitfield kQueueProfiling = 1U << 1U;
constexpr cl_uint kProfilingStart = 0x1282;
constexpr cl_uint kProfilingEnd = 0x1283;
constexpr cl_uint kEventStatus = 0x11D3;
constexpr cl_int kEventComplete = 0;
constexpr cl_uint kProgramBinarySizes = 0x1165;
constexpr cl_uint kProgramBinaries = 0x1166;
constexpr cl_uint kProgramBuildLog = 0x1183;

struct Functions {
  Functions();

  DriverLibrary library;
  cl_int (*GetPlatformIDs)(cl_uint, cl_platform_id*, cl_uint*) = nullptr;
  cl_int (*GetDeviceIDs)(cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*) = nullptr;
  cl_int (*GetDeviceInfo)(cl_device_id, cl_uint, std::size_t, void*, std::size_t*) = nullptr;
  cl_context (*CreateContext)(const std::intptr_t*, cl_uint, const cl_device_id*, void*, void*,
                              cl_int*) = nullptr;
  cl_command_queue (*CreateCommandQueue)(cl_context, cl_device_id, cl_bitfield, cl_int*) = nullptr;
  cl_mem (*CreateBuffer)(cl_context, cl_bitfield, std::size_t, void*, cl_int*) = nullptr;
  cl_program (*CreateProgramWithSource)(cl_context, cl_uint, const char**, const std::size_t*,
                                        cl_int*) = nullptr;
  cl_program (*CreateProgramWithBinary)(cl_context, cl_uint, const cl_device_id*,
                                        const std::size_t*, const unsigned char**, cl_int*,
                                        cl_int*) = nullptr;
  cl_int (*GetProgramInfo)(cl_program, cl_uint, std::size_t, void*, std::size_t*) = nullptr;
  cl_int (*BuildProgram)(cl_program, cl_uint, const cl_device_id*, const char*, void*,
                         void*) = nullptr;
  cl_int (*GetProgramBuildInfo)(cl_program, cl_device_id, cl_uint, std::size_t, void*,
                                std::size_t*) = nullptr;
  cl_kernel (*CreateKernel)(cl_program, const char*, cl_int*) = nullptr;
  cl_int (*SetKernelArg)(cl_kernel, cl_uint, std::size_t, const void*) = nullptr;
  cl_int (*EnqueueNDRangeKernel)(cl_command_queue, cl_kernel, cl_uint, const std::size_t*,
                                 const std::size_t*, const std::size_t*, cl_uint, const cl_event*,
                                 cl_event*) = nullptr;
  cl_int (*EnqueueReadBuffer)(cl_command_queue, cl_mem, cl_uint, std::size_t, std::size_t, void*,
                              cl_uint, const cl_event*, cl_event*) = nullptr;
  cl_int (*EnqueueWriteBuffer)(cl_command_queue, cl_mem, cl_uint, std::size_t, std::size_t,
                               const void*, cl_uint, const cl_event*, cl_event*) = nullptr;
  void* (*EnqueueMapBuffer)(cl_command_queue, cl_mem, cl_uint, cl_bitfield, std::size_t,
                            std::size_t, cl_uint, const cl_event*, cl_event*, cl_int*) = nullptr;
  cl_int (*EnqueueUnmapMemObject)(cl_command_queue, cl_mem, void*, cl_uint, const cl_event*,
                                  cl_event*) = nullptr;
  cl_int (*EnqueueMarker)(cl_command_queue, cl_uint, const cl_event*, cl_event*) = nullptr;
  cl_int (*Flush)(cl_command_queue) = nullptr;
  cl_int (*GetEventInfo)(cl_event, cl_uint, std::size_t, void*, std::size_t*) = nullptr;
  cl_int (*GetEventProfilingInfo)(cl_event, cl_uint, std::size_t, void*, std::size_t*) = nullptr;
  cl_int (*ReleaseEvent)(cl_event) = nullptr;
  cl_int (*ReleaseMemObject)(cl_mem) = nullptr;
  cl_int (*ReleaseKernel)(cl_kernel) = nullptr;
  cl_int (*ReleaseProgram)(cl_program) = nullptr;
  cl_int (*ReleaseCommandQueue)(cl_command_queue) = nullptr;
  cl_int (*ReleaseContext)(cl_context) = nullptr;
};

}  // namespace edgepack::opencl
