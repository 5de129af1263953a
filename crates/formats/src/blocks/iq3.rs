//! The 3-bit format of ggml's that takes its elements four at a time from a table.
#![allow(non_camel_case_types)]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// 3.4375 bits an element, 8 sub-blocks of 32: `d * (2 scale + 1) * (2 q + 1)`, or minus that,
/// where `q` is an octal digit of `IQ3_GRID`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3_S {
    /// Scale of the scales.
    pub d: Half,
    /// The low eight bits of every four elements' index into `IQ3_GRID`.
    pub qs: [u8; 64],
    /// The ninth bit of index `i` is bit `i % 8` of byte `i / 8`.
    pub qh: [u8; 8],
    /// Element `i` is negative where bit `i % 8` of byte `i / 8` is set.
    pub signs: [u8; 32],
    /// Scale `i` is nibble `i % 2` of byte `i / 2`.
    pub scales: [u8; 4],
}

impl IQ3_S {
    /// The integers in element order: odd, -15 to 15.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, four) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let ninth = self.qh[i / 8] >> (i % 8) & 1;
            let entry = IQ3_GRID[usize::from(self.qs[i]) | usize::from(ninth) << 8];
            let signs = self.signs[i / 2] >> (4 * (i % 2));
            *four = std::array::from_fn(|j| {
                let magnitude = (2 * (entry >> (9 - 3 * j) & 7) + 1) as i8;
                if signs >> j & 1 == 1 { -magnitude } else { magnitude }
            });
        }
        quants
    }

    /// The scales: odd, 1 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        std::array::from_fn(|i| 2 * (self.scales[i / 2] >> (4 * (i % 2)) & 15) as i8 + 1)
    }
}

impl Block<256> for IQ3_S {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        let quants = self.quants();
        let subs = out.as_chunks_mut::<32>().0.iter_mut().zip(quants.as_chunks::<32>().0);
        for ((out, quants), scale) in subs.zip(self.scales()) {
            let d = self.d.get() * f32::from(scale);
            *out = quants.map(|q| d * f32::from(q));
        }
    }
}

/// The format's 512 choices of four magnitudes, an octal digit each, the first element's first.
#[rustfmt::skip]
pub const IQ3_GRID: [u16; 512] = [
    0o0000, 0o1000, 0o2000, 0o5000, 0o7000, 0o0100, 0o1100, 0o2100, 0o4100, 0o6100,
    0o0200, 0o1200, 0o5200, 0o3300, 0o0400, 0o2400, 0o5400, 0o7400, 0o1500, 0o3500,
    0o0600, 0o2600, 0o1700, 0o4700, 0o7700, 0o0010, 0o1010, 0o2010, 0o4010, 0o0110,
    0o1110, 0o5110, 0o0210, 0o3210, 0o7210, 0o1310, 0o5310, 0o4410, 0o1610, 0o5610,
    0o2710, 0o0020, 0o1020, 0o5020, 0o7020, 0o0120, 0o3120, 0o6120, 0o1220, 0o5220,
    0o0320, 0o4320, 0o2420, 0o5420, 0o7420, 0o1520, 0o3520, 0o0720, 0o3720, 0o3030,
    0o1130, 0o5130, 0o0230, 0o2230, 0o1330, 0o3330, 0o6330, 0o4430, 0o0530, 0o2530,
    0o7630, 0o1730, 0o5730, 0o0040, 0o3140, 0o7140, 0o1240, 0o4240, 0o2340, 0o0440,
    0o3440, 0o1540, 0o0740, 0o2050, 0o4050, 0o0250, 0o2250, 0o6250, 0o3350, 0o1450,
    0o5450, 0o7450, 0o6650, 0o3750, 0o6060, 0o1160, 0o3160, 0o1360, 0o2560, 0o1760,
    0o0070, 0o2070, 0o4070, 0o0270, 0o2270, 0o6270, 0o3370, 0o0570, 0o4570, 0o0001,
    0o1001, 0o2001, 0o4001, 0o0101, 0o1101, 0o3101, 0o5101, 0o7101, 0o0201, 0o2201,
    0o1301, 0o4301, 0o6301, 0o4501, 0o6501, 0o1601, 0o2701, 0o0011, 0o1011, 0o3011,
    0o6011, 0o0111, 0o4111, 0o1211, 0o0311, 0o3311, 0o1411, 0o0511, 0o2511, 0o0711,
    0o6711, 0o0021, 0o2121, 0o5121, 0o7121, 0o0221, 0o4221, 0o2321, 0o0421, 0o3421,
    0o5521, 0o0621, 0o2721, 0o1031, 0o4031, 0o7031, 0o0131, 0o3131, 0o1231, 0o7231,
    0o0331, 0o4331, 0o1431, 0o2631, 0o0731, 0o3041, 0o5041, 0o2141, 0o4141, 0o1341,
    0o3341, 0o2441, 0o6441, 0o0541, 0o4541, 0o1051, 0o0151, 0o3151, 0o1251, 0o0351,
    0o2351, 0o1551, 0o0261, 0o4261, 0o7261, 0o4461, 0o6461, 0o1071, 0o3071, 0o0171,
    0o2171, 0o1271, 0o5371, 0o1471, 0o2671, 0o0771, 0o0002, 0o1002, 0o3002, 0o5002,
    0o7002, 0o0102, 0o2102, 0o4102, 0o6102, 0o1202, 0o3202, 0o7202, 0o0302, 0o2302,
    0o1402, 0o3402, 0o5402, 0o0502, 0o2502, 0o7602, 0o0702, 0o3702, 0o5702, 0o0012,
    0o2012, 0o0112, 0o3112, 0o7112, 0o2212, 0o5212, 0o1312, 0o4312, 0o2412, 0o1512,
    0o1022, 0o4022, 0o7022, 0o1222, 0o3222, 0o0322, 0o7322, 0o1422, 0o3522, 0o7522,
    0o1722, 0o4722, 0o0032, 0o2032, 0o5032, 0o1132, 0o2232, 0o4232, 0o1332, 0o3332,
    0o2432, 0o0532, 0o6632, 0o1042, 0o7042, 0o0242, 0o3242, 0o2342, 0o5342, 0o1442,
    0o2742, 0o5742, 0o4052, 0o1152, 0o2252, 0o7352, 0o0452, 0o3552, 0o0752, 0o0062,
    0o2062, 0o7062, 0o1262, 0o5562, 0o1662, 0o5072, 0o1172, 0o6272, 0o0372, 0o3472,
    0o0572, 0o2003, 0o1103, 0o3103, 0o5103, 0o7103, 0o2203, 0o1303, 0o3303, 0o5303,
    0o2403, 0o4403, 0o7403, 0o1503, 0o3603, 0o1703, 0o1013, 0o3013, 0o5013, 0o4113,
    0o1213, 0o3213, 0o0413, 0o0613, 0o2713, 0o6713, 0o0023, 0o2123, 0o0223, 0o2323,
    0o4323, 0o0523, 0o1033, 0o0133, 0o4133, 0o1233, 0o3233, 0o7233, 0o0333, 0o1433,
    0o3433, 0o7433, 0o5533, 0o3733, 0o3043, 0o1143, 0o6143, 0o2243, 0o1343, 0o2543,
    0o0643, 0o4643, 0o1053, 0o0153, 0o2153, 0o5253, 0o2353, 0o4453, 0o6553, 0o3753,
    0o6163, 0o1463, 0o1073, 0o3073, 0o0273, 0o2273, 0o5373, 0o0004, 0o4004, 0o2104,
    0o0204, 0o4204, 0o7204, 0o2304, 0o1404, 0o0504, 0o0704, 0o2014, 0o7014, 0o1114,
    0o3114, 0o2214, 0o0314, 0o5314, 0o3414, 0o1514, 0o5514, 0o1024, 0o3024, 0o0124,
    0o5124, 0o1224, 0o3324, 0o0424, 0o7524, 0o2624, 0o0724, 0o4034, 0o1134, 0o3134,
    0o0234, 0o2234, 0o1334, 0o5334, 0o0044, 0o2044, 0o4244, 0o7344, 0o0444, 0o1744,
    0o5054, 0o7054, 0o1254, 0o2654, 0o3164, 0o4364, 0o0664, 0o0174, 0o5174, 0o0374,
    0o3474, 0o1574, 0o2005, 0o0105, 0o4105, 0o2205, 0o0405, 0o4405, 0o7405, 0o2505,
    0o6605, 0o4705, 0o1015, 0o3015, 0o5015, 0o2115, 0o1215, 0o2315, 0o2715, 0o0025,
    0o1125, 0o3225, 0o0325, 0o6325, 0o3525, 0o2035, 0o7035, 0o0135, 0o7235, 0o4435,
    0o1535, 0o5635, 0o3735, 0o1045, 0o4045, 0o0245, 0o2345, 0o6445, 0o2155, 0o6255,
    0o1555, 0o3555, 0o2465, 0o2075, 0o4075, 0o2275, 0o1106, 0o3106, 0o5106, 0o1306,
    0o3306, 0o0606, 0o0016, 0o0216, 0o7216, 0o4616, 0o2126, 0o4326, 0o2426, 0o5526,
    0o2626, 0o0726, 0o0036, 0o4136, 0o1236, 0o0436, 0o5246, 0o3446, 0o2646, 0o0056,
    0o3056, 0o4356, 0o0656, 0o5066, 0o0466, 0o1176, 0o3176, 0o0007, 0o4007, 0o7007,
    0o0207, 0o2207, 0o6307, 0o0407, 0o4507, 0o2607, 0o2017, 0o1117, 0o4217, 0o3417,
    0o5417, 0o1027, 0o4027, 0o0127, 0o6127, 0o1227, 0o0327, 0o1527, 0o2037, 0o2337,
    0o5337, 0o3537, 0o1047, 0o5047, 0o3147, 0o0247, 0o0547, 0o2257, 0o2457, 0o2067,
    0o1367, 0o0077,
];
