// Our own declarations of the part of CANN's host interfaces that native/runtime uses: names, order and kinds of
// parameters as public documents give them. Not the vendor's headers, and no more than compiling here needs.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

// --- acl -------------------------------------------------------------------------------------------------------------
typedef int aclError;
typedef void *aclrtStream, *aclrtBinHandle, *aclrtFuncHandle;
typedef struct aclrtBinaryLoadOptions aclrtBinaryLoadOptions;
typedef struct aclrtPlaceHolderInfo aclrtPlaceHolderInfo;
enum aclrtMemMallocPolicy { ACL_MEM_MALLOC_HUGE_FIRST };
enum aclrtMemcpyKind { ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST };
enum aclrtHostRegisterType { ACL_HOST_REGISTER_MAPPED };
enum aclrtDevAttr { ACL_DEV_ATTR_VECTOR_CORE_NUM = 201, ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE = 204 };
enum aclrtLaunchKernelAttrId {
  ACL_RT_LAUNCH_KERNEL_ATTR_DYN_UBUF_SIZE = 2,
  ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT = 7
};
union aclrtLaunchKernelAttrValue {
  uint32_t dynUBufSize;
  uint16_t timeout;
  uint32_t rsv[4];
};
struct aclrtLaunchKernelAttr {
  aclrtLaunchKernelAttrId id;
  aclrtLaunchKernelAttrValue value;
};
struct aclrtLaunchKernelCfg {
  aclrtLaunchKernelAttr* attrs;
  size_t numAttrs;
};
aclError aclrtMalloc(void**, size_t, aclrtMemMallocPolicy);
aclError aclrtFree(void*);
aclError aclrtMemset(void*, size_t, int32_t, size_t);
aclError aclrtMemcpy(void*, size_t, const void*, size_t, aclrtMemcpyKind);
aclError aclrtMallocHost(void**, size_t);
aclError aclrtFreeHost(void*);
aclError aclrtHostRegister(void*, uint64_t, aclrtHostRegisterType, void**);
aclError aclrtHostUnregister(void*);
aclError aclrtSynchronizeDevice(void);
aclError aclrtGetDevice(int32_t*);
aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t*);
aclError aclrtBinaryLoadFromFile(const char*, aclrtBinaryLoadOptions*, aclrtBinHandle*);
aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char*, aclrtFuncHandle*);
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle, uint32_t, aclrtStream, aclrtLaunchKernelCfg*, void*, size_t,
                                       aclrtPlaceHolderInfo*, size_t);

// --- shared by hccl and hcomm ----------------------------------------------------------------------------------------
enum HcclResult { HCCL_SUCCESS = 0, HCCL_E_AGAIN = 20, HCCL_E_RESERVED = 1042 };
typedef int32_t HcommResult;
typedef void *HcclComm, *HcclMemHandle, *EndpointHandle, *HcommMemHandle, *HcommChannelConfig, *HcommSocket;
typedef uint64_t ChannelHandle;
enum CommEngine { COMM_ENGINE_AIV = 4 };
enum CommProtocol { COMM_PROTOCOL_RESERVED = -1, COMM_PROTOCOL_HCCS = 0, COMM_PROTOCOL_LAST = 8 };
enum CommMemType { COMM_MEM_TYPE_DEVICE = 0 };
struct CommAbiHeader {
  uint32_t version, magicWord, size, reserved;
};
struct CommAddr {
  int32_t type;
  union {
    uint8_t raws[36];
    uint32_t id;
  };
};
struct EndpointLoc {
  int32_t locType;
  uint8_t raws[60];
};
struct EndpointDesc {
  CommProtocol protocol;
  CommAddr commAddr;
  EndpointLoc loc;
  uint8_t raws[52];
};
struct CommMem {
  CommMemType type;
  void* addr;
  uint64_t size;
};
HcommResult EndpointDescInit(EndpointDesc*, uint32_t);

// --- hccl ------------------------------------------------------------------------------------------------------------
struct CommLink {
  CommAbiHeader header;
  EndpointDesc srcEndpointDesc, dstEndpointDesc;
  union {
    uint8_t raws[128];
    struct {
      CommProtocol linkProtocol;
      uint8_t hop;
    };
  } linkAttr;
};
struct HcclChannelDesc {
  CommAbiHeader header;
  uint32_t remoteRank;
  CommProtocol channelProtocol;
  EndpointDesc localEndpoint, remoteEndpoint;
  uint32_t notifyNum;
  HcclMemHandle* memHandles;
  uint32_t memHandleNum;
  uint8_t raws[128];
};
HcclResult HcclCommGetHandleWithName(const char*, HcclComm*);
HcclResult HcclCommMemReg(HcclComm, const char*, const CommMem*, HcclMemHandle*);
HcclResult HcclRankGraphGetLayers(HcclComm, uint32_t**, uint32_t*);
HcclResult HcclRankGraphGetLinks(HcclComm, uint32_t, uint32_t, uint32_t, CommLink**, uint32_t*);
HcclResult HcclChannelDescInit(HcclChannelDesc*, uint32_t);
HcclResult HcclChannelAcquire(HcclComm, CommEngine, const HcclChannelDesc*, uint32_t, ChannelHandle*);
HcclResult HcclChannelGetRemoteMems(HcclComm, ChannelHandle, uint32_t*, CommMem**, char***);

// --- hcomm -----------------------------------------------------------------------------------------------------------
static const uint32_t HCOMM_CHANNEL_NAME_MAX_LEN = 191;
enum HcommSocketRole { HCOMM_SOCKET_ROLE_RESERVED = -1, HCOMM_SOCKET_ROLE_CLIENT = 0, HCOMM_SOCKET_ROLE_SERVER = 1 };
enum HcommChannelConfigType { HCOMM_CHANNEL_CONFIG_TYPE_IS_SHARED_QUEUE = 0 };
struct HcommChannelDesc {
  CommAbiHeader header;
  EndpointDesc remoteEndpoint;
  uint32_t notifyNum;
  bool exchangeAllMems;
  HcommMemHandle* memHandles;
  uint32_t memHandleNum;
  HcommSocket socket;
  HcommSocketRole role;
  uint16_t port;
  uint8_t raws[128];
  uint32_t qos;
  const char* channelName;
};
HcommResult HcommEndpointCreate(const EndpointDesc*, EndpointHandle*);
HcommResult HcommEndpointDestroy(EndpointHandle);
HcommResult HcommEndpointGetListenPort(EndpointHandle, uint32_t*);
HcommResult HcommMemReg(EndpointHandle, const char*, const CommMem*, HcommMemHandle*);
HcommResult HcommMemUnreg(EndpointHandle, HcommMemHandle);
HcommResult HcommChannelDescInit(HcommChannelDesc*, uint32_t);
HcommResult HcommChannelConfigCreate(HcommChannelConfig*);
HcommResult HcommChannelConfigDestroy(HcommChannelConfig);
HcommResult HcommChannelConfigSetInt(HcommChannelConfig, HcommChannelConfigType, uint32_t);
HcommResult HcommChannelCreateWithConfig(EndpointHandle, CommEngine, HcommChannelDesc*, uint32_t, HcommChannelConfig,
                                         ChannelHandle*);
HcommResult HcommChannelGetStatus(const ChannelHandle*, uint32_t, int32_t*);
HcommResult HcommChannelDestroy(const ChannelHandle*, uint32_t);
}
