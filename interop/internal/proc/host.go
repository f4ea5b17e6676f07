package proc

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// Ports are chosen here: above what upstream's server calls reserved, below the kernel's ephemeral range, so
// that no outgoing connection takes one between the probe and its use.
const (
	firstPort = 10000
	lastPort  = 32000
)

// FreePorts finds ports on 127.0.0.1 that nothing listens on. Another process may still take one; the caller
// retries on ErrPortTaken.
func FreePorts(count int) ([]int, error) {
	var ports []int
	taken := make(map[int]bool)
	for tries := 0; len(ports) < count; tries++ {
		if tries > 100*count {
			return nil, fmt.Errorf("no %d free ports between %d and %d", count, firstPort, lastPort)
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		if taken[port] {
			continue
		}
		taken[port] = true
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		listener.Close()
		ports = append(ports, port)
	}
	return ports, nil
}

// Metric reads one series without labels from a metrics page. A series that is missing counts as 0, since
// upstream creates most of them at first use.
func Metric(url, name string) (float64, error) {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get(url)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}

// DialsInProgress counts the sockets of this network namespace that have sent a SYN to the port and have no
// answer yet.
func DialsInProgress(port int) (int, error) {
	const synSent = "02"
	remote := fmt.Sprintf("0100007F:%04X", port)
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	defer table.Close()
	count := 0
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && fields[2] == remote && fields[3] == synSent {
			count++
		}
	}
	return count, lines.Err()
}
