package nexmark;

/**
 * When the sources of a job began, when its sinks ended, and how many rows these were given.
 *
 * <p>In the properties of the virtual machine: these are seen whatever class loader is used.
 */
final class Marks {
    private static final String BEGAN = "nexmark.began";
    private static final String ENDED = "nexmark.ended";
    private static final String ROWS = "nexmark.rows";

    private Marks() {}

    static void clear() {
        System.clearProperty(BEGAN);
        System.clearProperty(ENDED);
        System.clearProperty(ROWS);
    }

    static void began() {
        System.getProperties().putIfAbsent(BEGAN, Long.toString(System.nanoTime()));
    }

    static void ended(long rows) {
        synchronized (System.getProperties()) {
            System.setProperty(ENDED, Long.toString(System.nanoTime()));
            System.setProperty(ROWS, Long.toString(Long.getLong(ROWS, 0) + rows));
        }
    }

    static boolean hasBegun() {
        return System.getProperty(BEGAN) != null;
    }

    static double seconds() {
        return (Long.getLong(ENDED) - Long.getLong(BEGAN)) / 1e9;
    }

    static long rows() {
        return Long.getLong(ROWS);
    }
}
